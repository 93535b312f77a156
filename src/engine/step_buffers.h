// A step's arrays where the device's kernels read them.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/forward.h"

namespace dsv4 {

// On the host a step's own vectors serve. On a device the arrays lie at fixed addresses, one copy brings a step there,
// and recordings may name those addresses as long as generation() stays.
class StepBuffers {
 public:
  explicit StepBuffers(Device& device) : device_(device) {}

  // Room for steps of that size. Throws std::bad_alloc.
  void Reserve(int64_t max_tokens, int64_t max_rows);

  // The view of `step`, which must outlive it on the host.
  StepView Place(const Step& step);

  int64_t generation() const { return generation_; }

 private:
  StepView View(int64_t tokens, int64_t sequences, int64_t rows) const;

  Device& device_;
  DeviceBuffer memory_;
  std::vector<uint8_t> staged_;
  int64_t max_tokens_ = 0, max_rows_ = 0, generation_ = 0;
  int64_t tokens_at_ = 0, positions_at_ = 0, sequence_of_at_ = 0, sequences_at_ = 0, rows_at_ = 0;
};

}  // namespace dsv4
