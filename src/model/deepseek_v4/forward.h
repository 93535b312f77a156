// The forward pass (docs/model.md): reads like the paper, knows no device.
#pragma once

#include <functional>
#include <vector>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "kv/layout.h"
#include "model/deepseek_v4/activations.h"
#include "model/deepseek_v4/config.h"
#include "model/deepseek_v4/weights.h"

namespace dsv4 {

// The tokens of one pass: S sequences of mixed lengths, one behind the other.
struct Step {
  std::vector<int32_t> tokens;            // [T]
  std::vector<int64_t> positions;         // [T]
  std::vector<int32_t> sequence_of;       // [T]
  std::vector<SequenceView> sequences;    // [S]
  std::vector<int32_t> logit_rows;        // [R]: rows of [0, T) whose logits are wanted

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  void Clear() {  // keeps the memory
    tokens.clear(), positions.clear(), sequence_of.clear(), sequences.clear(), logit_rows.clear();
  }
};

// The same as kernels read it: arrays in the device's memory.
struct StepView {
  Tensor tokens;                           // i32 [T]
  Tensor positions;                        // i64 [T]
  const int32_t* sequence_of = nullptr;    // [T]
  const SequenceView* sequences = nullptr; // [S]
  int64_t num_sequences = 0;
  Tensor logit_rows;                       // i32 [R]

  int64_t num_tokens() const { return tokens.dim(0); }
};
StepView HostView(const Step& step);

struct NumericsModes {
  KvDtype kv = KvDtype::kFp8;
  IndexDtype index = IndexDtype::kFp4;
  ActivationDtype activation = ActivationDtype::kNative;
};

// A bound model, ready to run.
struct Model {
  Config config;
  Weights weights;
  NumericsModes modes;
  KvLayout kv_layout;
};

// `weights` get their RoPE frequencies here, in the host's memory, unless they have them.
Model MakeModel(Config config, Weights weights, NumericsModes modes);

KvSpec MakeKvSpec(const Config& config, const NumericsModes& modes);

// Called with the streams [T, H, D] after each layer: to look inside, not to change them.
using LayerObserver = std::function<void(int64_t layer, const Tensor& streams)>;

// logits f32 [R, V]. Appends the step's tokens to the caches of its sequences, whose pages must reach that far.
void Forward(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a, const Tensor& logits,
             const LayerObserver& observer = {});

}  // namespace dsv4
