// Where the experts of a loaded model are, and what follows from it: of one rank (docs/offload.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "dsv4/experts.h"
#include "dsv4/status.h"
#include "model/deepseek_v4/experts/cpu_experts.h"
#include "model/deepseek_v4/experts/disk_experts.h"
#include "model/deepseek_v4/experts/expert_moves.h"
#include "model/deepseek_v4/experts/expert_streams.h"
#include "model/deepseek_v4/experts/expert_tally.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"
#include "model/expert_swap.h"
#include "tensor/tensor.h"

namespace dsv4::deepseek_v4 {

class ExpertPlaces {
 public:
  // Of the device's memory beside the experts, where some are on the host or on the disk.
  static int64_t Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts);

  // `weights` outlive this; expert_bytes: of one expert of every layer, `num_experts` of each; homes: of those on the
  // disk.
  ExpertPlaces(Weights& weights, ExpertPlacement placement, std::vector<int64_t> expert_bytes, int64_t num_experts,
               ExpertHomes homes);

  // As LoadedModel says. `device` is the same in all calls, and outlives this.
  [[nodiscard]] bool Count(Device& device);
  [[nodiscard]] bool UseHost(Device& device, ExpertComputing how, int64_t slots);  // of a row, with the shared one
  // The expert's matrices are where they are named, for the work that is queued next.
  void Bring(int64_t layer, int64_t expert) const {
    if (disk_ != nullptr) disk_->Bring(layer, expert);
  }
  std::vector<ExpertSwap> BetterPlaces(std::span<const double> chosen, int64_t most) const {
    return deepseek_v4::BetterPlaces(placement_, chosen, num_experts_, most);
  }
  int64_t BeginSwaps(std::span<const ExpertSwap> swaps);
  bool ContinueSwaps(Device& device);
  void AskForCounts(Device& device);
  std::vector<uint64_t> CountsAskedFor(Device& device);
  Result<ExpertUse> Use(Device& device) const;

  // i64 [L, E], for count_experts; empty: passes do not count.
  const Tensor& chosen() const { return chosen_; }
  const Tensor& passes() const { return passes_; }

 private:
  size_t num_counters() const { return 2 * expert_bytes_.size() * static_cast<size_t>(num_experts_); }
  // The counters as they are between the passes that are queued and the next, on their way.
  void FetchCounters(Device& device);
  std::span<const uint64_t> fetched() const;
  void Close(Device& device);
  void Name(Device& device, const ExpertMove& move);
  // Kernels' tables name the expert where it is `now`.
  void Tell(Device& device, int64_t layer, int64_t expert, const ExpertWeights& now);

  Weights& weights_;
  ExpertPlacement placement_;  // as tables say it
  const std::vector<int64_t> expert_bytes_;
  const int64_t num_experts_;
  ExpertTally tally_;
  const ExpertHomes homes_;
  std::unique_ptr<ExpertStreams> streams_;
  std::unique_ptr<DiskExperts> disk_;
  std::unique_ptr<CpuExperts> cpu_;  // null: the device computes all
  DeviceBuffer spare_;
  std::unique_ptr<ExpertMoves> moves_;
  int64_t swaps_ = 0;
  DeviceBuffer counters_;  // chosen_, then passes_
  Tensor chosen_, passes_;
  StagingBuffer fetched_;
  int64_t fetched_mark_ = 0;
  std::vector<ExpertMove> named_;  // right behind fetched_, which tally_ does not know yet
};

}  // namespace dsv4::deepseek_v4
