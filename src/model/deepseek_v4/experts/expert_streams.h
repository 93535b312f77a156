// Experts of the host for prompts: nearly all of a layer's are needed, so they are copied to the device's memory in the
// order of the layers, beside the work, and multiplied there (docs/offload.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/experts/fetch_schedule.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "ops/experts/experts.h"

namespace dsv4::deepseek_v4 {

class ExpertStreams {
 public:
  // Of the device's memory, at most; expert_bytes: of one expert of every layer, `num_experts` of each.
  static int64_t Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts);

  // `bytes`: as above. `weights` are in the device's memory and, where `placement` says so, the host's; both outlive
  // this. Null: no room on the device, or it has no kernels for it.
  static std::unique_ptr<ExpertStreams> Open(Device& device, const Weights& weights, const ExpertPlacement& placement,
                                             std::span<const int64_t> expert_bytes);
  ~ExpertStreams();

  // From the next pass on the layer's expert lies elsewhere: on the device, or where another one was on the host.
  void Follow(Device& device, int64_t layer, int64_t expert, const ExpertWeights& now);

  const FetchedExperts* Of(int64_t layer) const;  // null: it has none on the host
  int64_t fetched_bytes() const { return schedule_->fetched_bytes(); }
  double waited_seconds() const { return schedule_->waited_seconds(); }

 private:
  class LayerFetch;
  struct Layer;
  ExpertStreams();

  DeviceBuffer memory_;  // the places, then the layers' tables
  std::unique_ptr<FetchSchedule> schedule_;
  std::vector<std::unique_ptr<Layer>> layers_;  // null: none on the host
};

}  // namespace dsv4::deepseek_v4
