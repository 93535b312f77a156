// Padding rows ("idle rows" in code) at the end of a decode step, so that steps have few sizes.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kv/layout.h"
#include "model/model.h"

namespace dsv4 {

// The number of rows that a decode step of `rows` sequences runs with: `rows` up to 8, the next multiple of 4 up to 64,
// the next multiple of 8 above. Seven padding rows after nine rows cost 6 % of the step, three about half of that
// (bench/notes/decode-batches.md).
int64_t StepRows(int64_t rows);

// The padding rows (ops/idle_row.h) of one rank's steps. They have position 0, where no compressed row is made or read,
// in a sequence without pages. They all write the same values there, and no other row reads them.
class IdleRows {
 public:
  // `device` outlives it.
  IdleRows(Device& device, int64_t fixed_bytes) : device_(device), fixed_bytes_(fixed_bytes) {}

  // Bytes of device memory after Reserve, for caches of `layout`.
  static int64_t Bytes(const KvLayout& layout) { return layout.fixed_bytes; }
  // Throws std::bad_alloc.
  void Reserve();

  // The numbers of sequences and rows of Fill(step).
  struct Size {
    int64_t sequences, rows;
  };
  static Size SizeOf(const Step& step);

  // Returns `step`, which has few tokens per sequence and logits of all rows, with padding rows at its end: StepRows
  // rows in all. If every sequence has one token, every padding row has its own sequence; otherwise all share one.
  // Valid until the next call. Throws std::bad_alloc if Reserve was not called.
  const Step& Fill(const Step& step);

 private:
  Device& device_;
  const int64_t fixed_bytes_;
  DeviceBuffer fixed_;
  Step filled_;
};

}  // namespace dsv4
