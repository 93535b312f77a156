// What passes have counted of a model's experts, by where these were at that time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/experts.h"
#include "model/deepseek_v4/schema/expert_placement.h"

namespace dsv4::deepseek_v4 {

class ExpertTally {
 public:
  // expert_bytes: of one expert of every layer.
  ExpertTally(ExpertPlacement placement, std::vector<int64_t> expert_bytes, int64_t num_experts)
      : placement_(std::move(placement)), expert_bytes_(std::move(expert_bytes)), num_experts_(num_experts) {}

  // counters [2, L, E]: choices, then passes that needed the expert, since the first pass. Until these, experts were
  // where they are; behind them they may Move.
  void Close(std::span<const uint64_t> counters);
  void Move(int64_t layer, int64_t expert, bool to_host) { placement_.Move(layer, expert, to_host); }

  // Where experts are, what was chosen, and what of it was read where it lies on the host.
  ExpertUse Use(std::span<const uint64_t> counters) const;

 private:
  int64_t size() const { return static_cast<int64_t>(expert_bytes_.size()) * num_experts_; }

  ExpertPlacement placement_;
  std::vector<int64_t> expert_bytes_;
  int64_t num_experts_;
  std::vector<uint64_t> closed_;  // counters of the last Close; empty: zeros
  uint64_t chosen_resident_ = 0;  // until then
  double read_bytes_ = 0;
};

}  // namespace dsv4::deepseek_v4
