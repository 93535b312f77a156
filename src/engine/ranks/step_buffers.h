// A step's arrays where the device's kernels read them.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace dsv4 {

// On the host a step's own vectors serve. On a device the arrays lie at fixed addresses, and one copy brings a step
// there. Steps of up to kSmallStep tokens share a small block, so that a decode step copies little, at addresses that
// never change: recordings may name them.
class StepBuffers {
 public:
  static constexpr int64_t kSmallStep = 128;

  explicit StepBuffers(Device& device) : device_(device) {}

  // Of the device's memory, after Reserve(max_tokens).
  static int64_t Bytes(int64_t max_tokens);

  // Room for steps of that size, every row with logits. Throws std::bad_alloc.
  void Reserve(int64_t max_tokens);

  // The view of `step`, which must outlive it on the host.
  StepView Place(const Step& step);

 private:
  struct Block {
    int64_t max_tokens = 0;
    int64_t positions_at = 0, tokens_at = 0, sequence_of_at = 0, sequences_at = 0, rows_at = 0;
    DeviceBuffer memory;
    std::vector<uint8_t> staged;
  };
  void Reserve(Block& block, int64_t max_tokens);

  Device& device_;
  Block small_, large_;
};

}  // namespace dsv4
