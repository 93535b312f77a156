// A step's arrays in memory that the device's kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace dsv4 {

// On the host, these are the step's own vectors. On a device, the arrays have fixed addresses, and one copy uploads a
// step. Steps of up to kSmallStep tokens share a small block, so that a decode step copies little. Its addresses never
// change, so recordings may contain them.
class StepBuffers {
 public:
  static constexpr int64_t kSmallStep = 128;

  explicit StepBuffers(Device& device) : device_(device) {}

  // Bytes of device memory after Reserve(max_tokens).
  static int64_t Bytes(int64_t max_tokens);

  // Allocates memory for steps of that size, with logits of every row. Throws std::bad_alloc.
  void Reserve(int64_t max_tokens);

  // Returns the view of `step`. On the host, `step` must outlive the view.
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
