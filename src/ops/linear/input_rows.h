// The inputs of a product as MultiplyRows wants them: one pointer a row, and zeros behind a K that is no multiple of
// 8. Keeps its memory from call to call.
#pragma once

#include <vector>

#include "ops/linear/multiply_rows.h"

namespace dsv4::DSV4_ISA {

class InputRows {
 public:
  // `count` rows of `groups` vectors of `width` floats; row(i) points at row i.
  template <typename RowAt>
  void Set(int64_t count, int64_t groups, int64_t width, const RowAt& row) {
    group_stride_ = PadToLanes(width);
    rows_.resize(static_cast<size_t>(count));
    if (group_stride_ == width) {
      for (int64_t i = 0; i < count; ++i) rows_[static_cast<size_t>(i)] = row(i);
      return;
    }
    padded_.assign(static_cast<size_t>(count * groups * group_stride_), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      float* out = padded_.data() + i * groups * group_stride_;
      rows_[static_cast<size_t>(i)] = out;
      for (int64_t g = 0; g < groups; ++g) std::copy_n(row(i) + g * width, width, out + g * group_stride_);
    }
  }

  const float* const* rows() const { return rows_.data(); }
  int64_t group_stride() const { return group_stride_; }

 private:
  std::vector<const float*> rows_;
  std::vector<float> padded_;
  int64_t group_stride_ = 0;
};

}  // namespace dsv4::DSV4_ISA
