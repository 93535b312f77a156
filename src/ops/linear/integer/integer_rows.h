// y[t] = W x[t] with x rounded to integers of one, two or three bytes (RoundActivation, kInt8 to kInt24), for W in
// MXFP4 or NVFP4.
//
// Twice an E2M1 value is an integer of magnitude at most 12. So the products of 16 columns (a block of NVFP4, half a
// block of MXFP4) and their sum are integers: at most 12 * 16 * 8355711 < 2^31. Every instruction set computes the same
// sum, converts it to float32 (three bytes: with rounding) and multiplies it by (scale of the weights * scale of the
// inputs).
//
// Lane l of kLanes adds the columns given by IntegerBlock, in order of the blocks, with fused multiply-add if the
// instruction set has it. The lanes are added at the end (simd.h) and multiplied by the global scale. The order does
// not depend on rows, tokens or threads.
//
// Each byte of the inputs adds to the products of a token, but not to the decoding of the weights.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "dsv4/types.h"
#include "ops/simd.h"
#include "tensor/codec/activation.h"
#include "tensor/quant_tensor.h"

namespace dsv4::DSV4_ISA {

inline constexpr int64_t kIntegerStep = 128;  // columns of an input block: 64 bytes of codes

// 128 columns of an input row, arranged as the weights are unpacked: even columns are low nibbles, odd columns high.
//   bytes     [0] is the highest byte; all from -128 to 127; bytes[b][p] belongs to column IntegerColumn(p)
//             lane l sums the kLaneColumns columns from LaneColumn(l)
//   offset    codes of weights are used with 12 added, as unsigned numbers; this corrects the lane's sum
//   scale     of the lane's columns
template <int Bytes>
struct alignas(64) IntegerBlock {
  int8_t bytes[Bytes][kIntegerStep];
#if defined(DSV4_SIMD_AVX512) || defined(DSV4_SIMD_AVX2)
  int32_t offset[kLanes];
#endif
  float scale[kLanes];
};

inline constexpr int64_t kLaneColumns = kIntegerStep / kLanes;
#if defined(DSV4_SIMD_AVX512)
constexpr int64_t IntegerColumn(int64_t p) { return p % 64 * 2 + p / 64; }
constexpr int64_t LaneColumn(int64_t l) { return l * kLaneColumns; }
#elif defined(DSV4_SIMD_AVX2)
constexpr int64_t IntegerColumn(int64_t p) { return p / 64 * 64 + p % 32 * 2 + p % 64 / 32; }
// Two vectors of sums are interleaved by pairs: blocks 0 1 4 5 | 2 3 6 7.
constexpr int64_t LaneColumn(int64_t l) { return (l % 2 + l % 4 / 2 * 4 + l / 4 * 2) * kLaneColumns; }
#else
constexpr int64_t IntegerColumn(int64_t p) { return p; }
constexpr int64_t LaneColumn(int64_t l) { return l * kLaneColumns; }
#endif

constexpr int64_t NumIntegerBlocks(int64_t k) { return CeilDiv(k, kIntegerStep); }

// Converts x's K columns to NumIntegerBlocks(k) blocks, with zeros after the last column.
template <int Bytes>
void ToIntegerBlocks(const float* x, int64_t k, IntegerBlock<Bytes>* out) {
  for (int64_t b = 0; b < k; b += kIntegerStep, ++out) {
    int32_t q[kIntegerStep] = {};
    float scales[kIntegerStep / kIntegerBlockSize] = {};
    for (int64_t i = 0; i < kIntegerStep && b + i < k; i += kIntegerBlockSize) {
      scales[i / kIntegerBlockSize] = QuantiseToIntegers(x + b + i, std::min(kIntegerBlockSize, k - b - i), Bytes,
                                                         q + i);
    }
    for (int64_t p = 0; p < kIntegerStep; ++p) {
      int32_t value = q[IntegerColumn(p)];
      for (int byte = Bytes - 1; byte >= 0; --byte) {
        out->bytes[byte][p] = static_cast<int8_t>(((value + 128) & 255) - 128);
        value = (value + 128) >> 8;
      }
    }
    for (int64_t l = 0; l < kLanes; ++l) {
      out->scale[l] = scales[LaneColumn(l) / kIntegerBlockSize];
#if defined(DSV4_SIMD_AVX512) || defined(DSV4_SIMD_AVX2)
      int32_t sum = 0;
      for (int64_t i = 0; i < kLaneColumns; ++i) sum += q[LaneColumn(l) + i];
      out->offset[l] = -12 * sum;
#endif
    }
  }
}

struct alignas(64) CacheLine {
  uint8_t data[64];
};

// Input rows as IntegerBlocks. Reuses its memory in the next call (see input_rows.h).
class IntegerRows {
 public:
  template <typename RowAt>
  void Set(ThreadPool* pool, int64_t count, int64_t groups, int64_t width, ActivationDtype activation,
           const RowAt& row) {
    Reserve(count, groups, width, activation);
    const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(groups * width, 1));
    ParallelFor(pool, count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) SetRow(i, row(i));
    });
  }
  // In two steps: Reserve makes room for the rows; SetRow sets one row, from any thread.
  void Reserve(int64_t count, int64_t groups, int64_t width, ActivationDtype activation) {
    groups_ = groups;
    width_ = width;
    bytes_ = IntegerBytes(activation);
    const size_t block = bytes_ == 1   ? sizeof(IntegerBlock<1>)
                         : bytes_ == 2 ? sizeof(IntegerBlock<2>)
                                       : sizeof(IntegerBlock<3>);
    group_stride_ = NumIntegerBlocks(width) * static_cast<int64_t>(block / sizeof(CacheLine));
    const int64_t stride = groups * group_stride_;
    if (lines_.size() < static_cast<size_t>(count * stride)) lines_.resize(static_cast<size_t>(count * stride));
    rows_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) rows_[static_cast<size_t>(i)] = lines_.data() + i * stride;
  }
  void SetRow(int64_t i, const float* row) {
    CacheLine* out = lines_.data() + i * groups_ * group_stride_;
    for (int64_t g = 0; g < groups_; ++g, row += width_, out += group_stride_) {
      if (bytes_ == 1) {
        ToIntegerBlocks(row, width_, reinterpret_cast<IntegerBlock<1>*>(out));
      } else if (bytes_ == 2) {
        ToIntegerBlocks(row, width_, reinterpret_cast<IntegerBlock<2>*>(out));
      } else {
        ToIntegerBlocks(row, width_, reinterpret_cast<IntegerBlock<3>*>(out));
      }
    }
  }

  const CacheLine* const* rows() const { return rows_.data(); }
  const CacheLine* row(int64_t i) const { return rows_[static_cast<size_t>(i)]; }
  int64_t group_stride() const { return group_stride_; }

 private:
  std::vector<const CacheLine*> rows_;
  std::vector<CacheLine> lines_;
  int64_t groups_ = 0, width_ = 0, group_stride_ = 0;
  int bytes_ = 1;
};

struct IntegerProduct {
  static constexpr int64_t kRows = 4;                   // a thread's number of rows is a multiple of this
  const QuantTensor* w = nullptr;                       // MXFP4 or NVFP4
  ActivationDtype activation = ActivationDtype::kInt8;  // x is made by IntegerRows with this activation
  const CacheLine* const* x = nullptr;                  // [num_tokens] rows
  int64_t x_offset = 0;                                 // added to every x[t], in lines
  float* const* y = nullptr;                            // [num_tokens] rows
  int64_t y_offset = 0;                                 // row `begin` of W goes to y[t][y_offset]
  int64_t num_tokens = 0;
};

// Rows [begin, end) of W (integer_rows_cpu.cc).
void MultiplyRows(const IntegerProduct& p, int64_t begin, int64_t end);

}  // namespace dsv4::DSV4_ISA
