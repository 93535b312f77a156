// Which experts a device holds follows what tokens choose: every so often those of the host that were chosen much
// lately change places with those of the device that were not, beside the steps (docs/offload.md). Bits stay the same.
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
  static constexpr std::chrono::seconds kHalfLife{5};  // after which a choice counts half

  // Where some experts are on the host.
  void TurnOn() {
    *this = {};  // a model that was loaded anew counts anew
    on_ = true;
  }

  // Between steps, some of which may be queued on the ranks, while none of them is queueing one. Waits for nothing.
  void Look(Ranks& ranks, Clock::time_point now = Clock::now());

 private:
  enum class State : uint8_t { kIdle, kAsked, kMoving };  // asked: for counts

  void Choose(Ranks& ranks, Clock::time_point now);

  bool on_ = false;
  State state_ = State::kIdle;
  Clock::time_point next_, last_;
  std::vector<uint64_t> seen_;  // counts of the last look
  std::vector<double> lately_;  // choices, those of before less and less
};

}  // namespace dsv4
