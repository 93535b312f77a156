// Experts of the host's memory that the CPU computes in decode steps, while the device computes those of its own
// (docs/offload.md, OffloadOptions::expert_compute).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "dsv4/engine.h"
#include "layers/expert_share.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

struct CpuUse {
  int64_t experts = 0;  // computed, each once a pass
  double bytes = 0;     // that they take
  double seconds = 0;   // of the CPU
};

// One rank's, of whole experts. The host waits for the choice of a layer that has experts on the host, has what is left
// to the device queued, and computes its share: no pass that may need it can be recorded.
class CpuExperts {
 public:
  // Rows of a pass. Decode rows and prompts of so few tokens are never in a larger one by default, so that none of them
  // depends on the others of its pass; larger ones read their experts over the link, as prompts do.
  static constexpr int64_t kMostRows = kMaxDecodeRows;

  // `weights` and `placement` outlive this; they say at any time where experts are. expert_bytes: of one expert of
  // every layer; slots: chosen for a row, with the shared one. Null: no room.
  static std::unique_ptr<CpuExperts> Open(Device& device, Weights& weights, const ExpertPlacement& placement,
                                          std::span<const int64_t> expert_bytes, int64_t slots, ExpertComputing how);
  ~CpuExperts();

  ExpertPartner* Of(int64_t layer);
  const CpuUse& use() const { return use_; }
  // Per byte of an expert, as measured; zeros where nothing is chosen by it (ExpertCompute::kCpu).
  const ExpertTimes& times() const { return per_byte_; }

 private:
  class Layer;

  CpuExperts(Device& device, Weights& weights, const ExpertPlacement& placement, std::span<const int64_t> expert_bytes,
             ExpertCompute by);
  bool Allocate(int64_t slots);
  bool Take(const Layer& layer, const Tensor& x, const Tensor& chosen, const Tensor& weights,
            ExpertPartner::Left* left);
  void Compute(const ExecContext& ctx, const Layer& layer, const MoeSettings& settings, const Tensor& sums);
  // Experts of the layer's that lie on the host, by how many rows chose them; marks those that the CPU takes.
  int64_t Choose(const Layer& layer, std::span<const int32_t> ids);

  Device& device_;
  Weights& weights_;
  const ExpertPlacement& placement_;
  const std::vector<int64_t> expert_bytes_;
  const ExpertCompute by_;
  ExpertTimes per_byte_;
  std::vector<std::unique_ptr<Layer>> layers_;
  StagingBuffer staging_;  // x, sums; choices, their weights; both of what is left
  DeviceBuffer left_;
  float *x_ = nullptr, *sums_ = nullptr, *weights_in_ = nullptr;
  int32_t* ids_ = nullptr;
  uint8_t* left_out_ = nullptr;
  std::vector<int64_t> rows_of_;  // [E]
  std::vector<uint8_t> taken_;    // [E]
  std::vector<ChosenExpert> chosen_;
  int64_t share_ = 0;
  Choices cpu_, rest_;
  ExpertSums compute_;
  CpuUse use_;
};

}  // namespace dsv4::deepseek_v4
