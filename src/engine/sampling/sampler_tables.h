// What samplers on a device read of sequences besides parameters: counts of penalties and biases. Of one device.
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

  // Ids that a sequence's sampler may bias; those with more are drawn for on the host.
  static constexpr size_t kMaxBiased = 1024;

  // Of the device's memory, after Reserve.
  static int64_t Bytes(int64_t vocab_size);

  // `device` outlives the tables.
  SamplerTables(Device& device, int64_t vocab_size) : device_(device), vocab_size_(vocab_size) {}

  // Takes all memory that samplers may ask for. Errors: kResourceExhausted; the next call takes what is missing.
  Status Reserve();

  // Brings what `sampler` holds to place `i`, below kMaxSequences: the row that draws its next token (ops/sample).
  // There is room.
  SampleRow Place(size_t i, const SamplerImpl& sampler);

 private:
  void PlaceCounts(size_t i, const SamplerImpl& sampler, SampleRow* row);
  void PlaceBias(size_t i, const SamplerImpl& sampler, SampleRow* row);

  Device& device_;
  const int64_t vocab_size_;
  // Each for kMaxSequences: u16 [2, V] of the prompt and of the output; i32 and f32 [kMaxBiased].
  DeviceBuffer counts_, bias_;
};

// Whether a device could draw: `id` as ops/sample has it.
Status CheckDrawn(int32_t id);

// The row that draws as `sampler` would, but for its counts and biases.
SampleRow RowOf(const SamplerImpl& sampler, int64_t vocab_size);
// The row of a draft: with the same random number and cuts, without penalties, which would need what the host has.
SampleRow DraftRowOf(const SamplerImpl& sampler, int64_t vocab_size);

}  // namespace dsv4
