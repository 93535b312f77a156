// Which experts a device holds follows what tokens choose: now and then, between steps, those of the host that were
// chosen much lately change places with those of the device that were not (docs/offload.md). Bits stay the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/ranks.h"

namespace dsv4 {

class Repicker {
 public:
  static constexpr std::chrono::seconds kEvery{5};
  static constexpr int64_t kMostSwaps = 64;  // at a time: 40 ms of copies of Flash's experts

  // Where some experts are on the host.
  void TurnOn() {
    *this = {};  // a model that was loaded anew counts anew
    on_ = true;
    next_ = std::chrono::steady_clock::now() + kEvery;
  }

  // Nothing may be queued on any rank. Does nothing before its time.
  void Look(Ranks& ranks) {
    if (on_ && std::chrono::steady_clock::now() >= next_) (void)Repick(ranks);
  }
  // At once; how many pairs of a rank changed places.
  int64_t Repick(Ranks& ranks);

 private:
  bool on_ = false;
  std::chrono::steady_clock::time_point next_;
  std::vector<uint64_t> seen_;   // counts of the last look
  std::vector<double> lately_;   // choices since, those of before by half at every look
};

}  // namespace dsv4
