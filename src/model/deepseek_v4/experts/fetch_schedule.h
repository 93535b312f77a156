// Weights that take turns in two places of a device's memory, in an order that is known beforehand: while one part is
// read, the next is copied.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/copy_queue.h"

namespace dsv4::deepseek_v4 {

struct FetchCopy {
  uint8_t* to;
  const uint8_t* from;
  int64_t bytes;
};
using FetchPart = std::vector<FetchCopy>;

class FetchSchedule {
 public:
  static constexpr int64_t kPlaces = 2;

  // Part i goes to place i % kPlaces: its copies write nothing that those of another place's parts write.
  FetchSchedule(std::unique_ptr<CopyQueue> copies, std::vector<FetchPart> parts);

  // Work that is queued from now on finds the part in its place. Any part may be asked for; what comes in order is
  // there sooner.
  void Await(int64_t part);
  // All work that reads the part has been queued.
  void Done(int64_t part);

  // What parts are copied from has changed: nothing that was fetched is used again.
  void Forget() { held_.fill(-1); }

  int64_t fetched_bytes() const { return fetched_bytes_; }
  double waited_seconds() const { return copies_->waited_seconds(); }  // that work has waited for its parts

 private:
  static size_t PlaceOf(int64_t part) { return static_cast<size_t>(part % kPlaces); }
  void Fetch(int64_t part);

  const std::unique_ptr<CopyQueue> copies_;
  const std::vector<FetchPart> parts_;
  std::array<int64_t, kPlaces> held_;        // the part in each place, or on its way there; -1: none
  std::array<int64_t, kPlaces> marks_ = {};  // behind its copies
  int64_t fetched_bytes_ = 0;
};

}  // namespace dsv4::deepseek_v4
