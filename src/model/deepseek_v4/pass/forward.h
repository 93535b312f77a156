// The forward pass (docs/dev/model.md): reads like the paper, knows no device.
#pragma once

#include <functional>
#include <string>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "kv/layout.h"
#include "layers/plan.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/pass/activations.h"
#include "model/deepseek_v4/schema/weights.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

// A bound model, ready to run.
struct Model {
  Config config;
  Weights weights;
  NumericsModes modes;
  KvLayout kv_layout;
  std::vector<LayerPlans> plans;  // by layer
  // by layer, where heads are cut: with all of them, for passes whose plan has a rank take its own tokens
  std::vector<AttentionWeights> attn_by_tokens;
  Tensor expert_chosen, expert_passes;  // i64 [L, E], in the device's memory (ops/count_experts); empty: nobody counts
};

// `weights` get their RoPE frequencies here, in the host's memory, unless they have them. Planned for a CPU.
Model MakeModel(Config config, Weights weights, NumericsModes modes);

// Plans every layer anew for the device and options of `ctx`.
void PlanModel(const ExecContext& ctx, Model* model);
LayerShape ShapeOfLayer(const Model& model, int64_t layer);

KvSpec MakeKvSpec(const Config& config, const NumericsModes& modes);

// Called with the streams [T, H, D] after each layer: to look inside, not to change them.
using LayerObserver = std::function<void(int64_t layer, const Tensor& streams)>;

// logits f32 [R, V], or fewer rows at a time: LoadedModel::Forward says how. Appends the step's tokens to the caches of
// its sequences, whose pages must reach that far.
// Of several ranks (shard.h) each calls it with the same step, its own model, caches and buffers; all get the same
// logits.
void Forward(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a, const Tensor& logits,
             const TakeLogits& take = {}, const LayerObserver& observer = {});

// Where ranks exchange at this site of a pass, for messages: "layer 17, experts".
std::string ExchangeName(const Config& config, int64_t site);

}  // namespace dsv4::deepseek_v4
