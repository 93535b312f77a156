// Tensor: a non-owning, contiguous, typed view. Shapes are in memory order, slowest axis first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace dsv4 {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    DSV4_CHECK(dims.size() <= kMaxRank);
    rank_ = static_cast<int>(std::copy(dims.begin(), dims.end(), dims_.begin()) - dims_.begin());
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  void Append(int64_t d) {
    DSV4_CHECK(rank_ < kMaxRank);
    dims_[static_cast<size_t>(rank_++)] = d;
  }
  bool operator==(const Shape&) const = default;
  std::string ToString() const {  // "[4096, 1024]"
    std::string s = "[";
    for (int i = 0; i < rank_; ++i) s += StrCat(i ? ", " : "", (*this)[i]);
    return s + "]";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;  // null: absent, where a contract allows that
  DType dtype = DType::kF32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int axis) const { return shape[axis]; }
  int64_t num_elements() const { return shape.num_elements(); }
  int64_t num_bytes() const { return num_elements() * SizeOf(dtype); }

  float* f32() const { return Typed<float>(DType::kF32); }
  int32_t* i32() const { return Typed<int32_t>(DType::kI32); }
  int64_t* i64() const { return Typed<int64_t>(DType::kI64); }

  // The same elements under another shape.
  Tensor Reshaped(Shape s) const {
    DSV4_CHECK_EQ(s.num_elements(), num_elements());
    return {data, dtype, s};
  }
  // Rows [first, first + n) of the slowest axis.
  Tensor Rows(int64_t first, int64_t n) const {
    Tensor rows = Head(n);
    const int64_t all = shape[0] == 0 ? 0 : num_bytes() / shape[0];
    rows.data = static_cast<uint8_t*>(data) + first * all;
    return rows;
  }
  // Rows [0, n) of the slowest axis.
  Tensor Head(int64_t n) const {
    DSV4_CHECK(shape.rank() >= 1 && n <= dim(0));
    Shape s{n};
    for (int i = 1; i < shape.rank(); ++i) s.Append(shape[i]);
    return {data, dtype, s};
  }

 private:
  template <typename T>
  T* Typed(DType expected) const {
    DSV4_CHECK(dtype == expected, "tensor is ", NameOf(dtype), ", expected ", NameOf(expected));
    return static_cast<T*>(data);
  }
};

}  // namespace dsv4
