// The inputs of a product in the form of MultiplyRows: one pointer per row, columns in the order in which the weights
// are decoded, zeros after the last column. Reuses its memory in the next call.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "ops/linear/rows/multiply_rows.h"

namespace dsv4::DSV4_ISA {

class InputRows {
 public:
  // `count` rows of `groups` vectors of `width` floats; row(i) points at row i. Rows that already have the form are not
  // copied.
  template <typename RowAt>
  void Set(ThreadPool* pool, int64_t count, int64_t groups, int64_t width, ColumnOrder order, const RowAt& row) {
    Reserve(count, groups, width, order);
    if (!copies_) {
      for (int64_t i = 0; i < count; ++i) rows_[static_cast<size_t>(i)] = row(i);
      return;
    }
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(groups * width, 1));
    ParallelFor(pool, count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) Copy(i, row(i));
    });
  }

  // In two steps: Reserve makes room for the rows; SetRow sets one row, from any thread.
  void Reserve(int64_t count, int64_t groups, int64_t width, ColumnOrder order) {
    groups_ = groups;
    width_ = width;
    order_ = order;
    group_stride_ = NumPositions(width, order);
    copies_ = order != ColumnOrder::kFile || group_stride_ != width;
    rows_.resize(static_cast<size_t>(count));
    if (!copies_) return;
    const int64_t stride = groups * group_stride_;
    if (copy_.size() < static_cast<size_t>(count * stride)) copy_.resize(static_cast<size_t>(count * stride));
    for (int64_t i = 0; i < count; ++i) rows_[static_cast<size_t>(i)] = copy_.data() + i * stride;
  }
  void SetRow(int64_t i, const float* row) {
    if (copies_) {
      Copy(i, row);
    } else {
      rows_[static_cast<size_t>(i)] = row;
    }
  }

  const float* const* rows() const { return rows_.data(); }
  const float* row(int64_t i) const { return rows_[static_cast<size_t>(i)]; }
  int64_t group_stride() const { return group_stride_; }

 private:
  void Copy(int64_t i, const float* row) {
    float* out = copy_.data() + i * groups_ * group_stride_;
    for (int64_t g = 0; g < groups_; ++g) Arrange(row + g * width_, width_, order_, out + g * group_stride_);
  }

  std::vector<const float*> rows_;
  std::vector<float> copy_;
  int64_t groups_ = 0, width_ = 0, group_stride_ = 0;
  ColumnOrder order_ = ColumnOrder::kFile;
  bool copies_ = false;
};

}  // namespace dsv4::DSV4_ISA
