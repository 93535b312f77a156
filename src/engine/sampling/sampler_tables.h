// The per-sequence data that samplers on one device read in addition to parameters: counts for penalties, and biases.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "dsv4/status.h"
#include "engine/ranks/step_buffers.h"
#include "engine/sampling/sampler_impl.h"
#include "ops/sample/sample.h"

namespace dsv4 {

class SamplerTables {
 public:
  static constexpr int64_t kMaxSequences = StepBuffers::kSmallStep;

  // Limit for the biased ids of a sequence's sampler. A sampler with more is drawn on the host.
  static constexpr size_t kMaxBiased = 1024;

  // Bytes of device memory after Reserve.
  static int64_t Bytes(int64_t vocab_size);

  // `device` outlives the tables.
  SamplerTables(Device& device, int64_t vocab_size) : device_(device), vocab_size_(vocab_size) {}

  // Allocates all memory that samplers may need. Errors: kResourceExhausted; the next call allocates the missing part.
  Status Reserve();

  // Uploads the data of `sampler` to place `i`, below kMaxSequences. Returns the row that draws its next token
  // (ops/sample). Requires Reserve.
  SampleRow Place(size_t i, const SamplerImpl& sampler);

 private:
  void PlaceCounts(size_t i, const SamplerImpl& sampler, SampleRow* row);
  void PlaceBias(size_t i, const SamplerImpl& sampler, SampleRow* row);

  Device& device_;
  const int64_t vocab_size_;
  // Each for kMaxSequences: u16 [2, V] counts in the prompt and in the output; i32 and f32 [kMaxBiased].
  DeviceBuffer counts_, bias_;
};

// Error if the device could not draw; `id` as ops/sample returns it.
Status CheckDrawn(int32_t id);

// The row that draws as `sampler` would, without counts and biases.
SampleRow RowOf(const SamplerImpl& sampler, int64_t vocab_size);
// The row of a draft: the same random number and thresholds, no penalties, because these need data of the host.
SampleRow DraftRowOf(const SamplerImpl& sampler, int64_t vocab_size);

}  // namespace dsv4
