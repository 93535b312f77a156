// Idle rows behind those of a decode step, so that steps have few sizes.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "model/model.h"

namespace dsv4 {

// Rows that a decode step of `rows` sequences runs with: as many up to 8, the next multiple of 4 up to 64, then of 8.
// Seven idle rows beside nine cost 6 % of the step (bench/notes/decode.md), three about half of that.
int64_t StepRows(int64_t rows);

// Idle rows (ops/idle_row.h) of one rank's steps. They lie at position 0, where no compressed row forms or is read, of
// one sequence without pages; they all write the same there, and nobody reads it.
class IdleRows {
 public:
  // `device` outlives it.
  IdleRows(Device& device, int64_t fixed_bytes) : device_(device), fixed_bytes_(fixed_bytes) {}

  // Of the device's memory, after Reserve, for caches of that layout.
  static int64_t Bytes(const KvLayout& layout) { return layout.fixed_bytes; }
  // Throws std::bad_alloc.
  void Reserve();

  // Sequences and rows of Fill(step).
  struct Size {
    int64_t sequences, rows;
  };
  static Size SizeOf(const Step& step);

  // `step`, with few tokens for each sequence and logits of all, and the idle rows behind them: StepRows in all. Where
  // every sequence has one token so has every idle row; else they are all of one. Good until the next call. Throws
  // std::bad_alloc where Reserve was not called.
  const Step& Fill(const Step& step);

 private:
  Device& device_;
  const int64_t fixed_bytes_;
  DeviceBuffer fixed_;
  Step filled_;
};

}  // namespace dsv4
