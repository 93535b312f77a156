// Buffers that detect errors of an op. Guard bytes on both sides detect writes outside. Poisoned content (NaN for
// floating point) detects elements that an op did not write, or read before writing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/tensor.h"

namespace dsv4::test {

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::kBf16;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
}

template <typename T>
class GuardBuffer {
 public:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuard = 0xA5;
  static constexpr uint8_t kPoison = 0xFF;  // a NaN in float32, BF16, E4M3 and E8M0; -1 as an integer

  explicit GuardBuffer(Shape shape) : shape_(shape) {
    bytes_.assign(size_bytes() + 2 * kGuardBytes, kGuard);
    Poison();
  }
  explicit GuardBuffer(int64_t n) : GuardBuffer(Shape{n}) {}
  GuardBuffer(Shape shape, const std::vector<T>& values) : GuardBuffer(shape) {
    DSV4_CHECK_EQ(static_cast<int64_t>(values.size()), shape.num_elements());
    if (!values.empty()) std::memcpy(data(), values.data(), size_bytes());
  }
  ~GuardBuffer() { EXPECT_TRUE(Intact()); }
  GuardBuffer(const GuardBuffer&) = delete;
  GuardBuffer& operator=(const GuardBuffer&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuardBytes); }
  int64_t size() const { return shape_.num_elements(); }
  T& operator[](int64_t i) { return data()[i]; }
  std::span<T> span() { return {data(), static_cast<size_t>(size())}; }
  std::vector<T> values() { return {data(), data() + size()}; }
  // Row `r` of the slowest axis.
  std::span<T> row(int64_t r) {
    const int64_t width = size() / shape_[0];
    return span().subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
  }
  Tensor tensor() { return {data(), DTypeOf<T>(), shape_}; }

  void Poison() { std::fill_n(bytes_.begin() + kGuardBytes, size_bytes(), kPoison); }

  ::testing::AssertionResult Intact() const {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (bytes_[i] != kGuard)
        return ::testing::AssertionFailure() << "written " << kGuardBytes - i << " bytes before the buffer";
      if (bytes_[kGuardBytes + size_bytes() + i] != kGuard) {
        return ::testing::AssertionFailure() << "written " << i << " bytes after the end of the buffer";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  size_t size_bytes() const { return static_cast<size_t>(shape_.num_elements()) * sizeof(T); }

  Shape shape_;
  std::vector<uint8_t> bytes_;
};

}  // namespace dsv4::test
