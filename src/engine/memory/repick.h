// Adapts the experts on a device to the tokens' choices. At intervals, experts in host memory that were chosen often
// recently swap with experts on the device that were not, while steps run (docs/offload.md). Bits do not change.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/ranks/ranks.h"

namespace dsv4 {

class Repicker {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kEvery{50};
  static constexpr std::chrono::seconds kHalfLife{5};  // after this time a choice counts half

  // Call if some experts are on the host.
  void TurnOn() {
    *this = {};  // a model that was loaded again starts with new counts
    on_ = true;
  }

  // Call between steps. Steps may be queued on the ranks, but no rank may be queueing one. Does not wait.
  void Look(Ranks& ranks, Clock::time_point now = Clock::now());

 private:
  enum class State : uint8_t { kIdle, kAsked, kMoving };  // kAsked: counts are requested

  void Choose(Ranks& ranks, Clock::time_point now);

  bool on_ = false;
  State state_ = State::kIdle;
  Clock::time_point next_, last_;
  std::vector<uint64_t> seen_;  // counts of the last look
  std::vector<double> lately_;  // recent choices; older ones count less and less
};

}  // namespace dsv4
