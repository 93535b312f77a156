// Random weight matrices in every format, with owned bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"
#include "tensor/codec/weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4::test {

struct QuantCase {
  WeightFormat format;
  DType scale_dtype = DType::kF32;  // kFp8Block only

  // "NVFP4", "FP8_128x128_E8M0", ...: valid as the name of a parameterised test.
  std::string name() const {
    std::string s{NameOf(format)};
    for (char& c : s) c = c == '-' ? '_' : c;
    if (format == WeightFormat::kFp8Block) s += scale_dtype == DType::kF8E8M0 ? "_E8M0" : "_F32";
    return s;
  }
};

// Every format; block FP8 with both scale dtypes.
inline std::vector<QuantCase> AllQuantCases() {
  return {{WeightFormat::kF32},
          {WeightFormat::kBf16},
          {WeightFormat::kFp8Block, DType::kF8E8M0},
          {WeightFormat::kFp8Block, DType::kF32},
          {WeightFormat::kMxfp4},
          {WeightFormat::kNvfp4}};
}

// The additional formats of experts on a GPU.
inline std::vector<QuantCase> TightQuantCases() { return {{WeightFormat::kMxfp4Tight}, {WeightFormat::kNvfp4Tight}}; }
inline std::vector<QuantCase> ExpertQuantCases() {
  std::vector<QuantCase> cases = AllQuantCases();
  for (const QuantCase& tight : TightQuantCases()) cases.push_back(tight);
  return cases;
}

// K must be a multiple of this number.
inline int64_t ColumnGranule(WeightFormat f) {
  return f == WeightFormat::kNvfp4 ? kNvfp4BlockSize : InfoOf(f).bits == 4 ? kMxfp4BlockSize : 1;
}

// The E4M3 code of 2^e, -9 <= e <= 8.
inline uint8_t E4m3PowerOfTwo(int e) { return static_cast<uint8_t>(e >= -6 ? (e + 7) << 3 : 1 << (e + 9)); }

struct QuantOptions {
  bool unaligned = true;         // codes and scales start at odd addresses, as they may in a mapped file
  int64_t scale_row_offset = 0;  // kFp8Block only
};

// A QuantTensor with its bytes. Copies are forbidden, moves keep the pointers valid.
class QuantFixture {
 public:
  // Weights of about unit size. Codes take every value of their format except NaN. Scales vary by block and include, at
  // random, the smallest scales and zero.
  QuantFixture(Random& random, QuantCase kind, int64_t rows, int64_t cols, QuantOptions options = {}) {
    DSV4_CHECK(cols % ColumnGranule(kind.format) == 0, "cols ", cols);
    QuantTensor& w = tensor_;
    w.format = kind.format;
    w.rows = rows;
    w.cols = cols;
    w.scale_dtype = kind.scale_dtype;
    const size_t skew = options.unaligned ? 1 : 0;
    codes_.resize(static_cast<size_t>(rows * w.row_bytes()) + skew);
    uint8_t* codes = codes_.data() + skew;
    w.codes = codes;
    switch (w.format) {
      case WeightFormat::kF32:
        for (int64_t i = 0; i < rows * cols; ++i) Store(codes, i, random.Normal());
        return;
      case WeightFormat::kBf16:
        for (int64_t i = 0; i < rows * cols; ++i) Store(codes, i, F32ToBf16(random.Normal()));
        return;
      case WeightFormat::kFp8Block: {
        w.scale_row_offset = options.scale_row_offset;
        for (int64_t i = 0; i < rows * cols; ++i) {
          const uint8_t magnitude = static_cast<uint8_t>(random.Index(0x7F));
          codes[i] = static_cast<uint8_t>(magnitude | (random.Chance(0.5) ? 0x80 : 0));
        }
        const int64_t num_scales = CeilDiv(options.scale_row_offset + rows, kFp8BlockSize) *
                                   CeilDiv(cols, kFp8BlockSize);
        const bool e8m0 = w.scale_dtype == DType::kF8E8M0;
        uint8_t* scales = NewScales(num_scales * (e8m0 ? 1 : 4), skew);
        for (int64_t i = 0; i < num_scales; ++i) {
          if (e8m0)
            scales[i] = static_cast<uint8_t>(127 - 4 - random.Index(4));  // 2^-7 .. 2^-4
          else
            Store(scales, i, static_cast<float>(random.Uniform(0.002, 0.02)));
        }
        return;
      }
      case WeightFormat::kMxfp4: {
        for (int64_t i = 0; i < rows * w.row_bytes(); ++i) codes[i] = static_cast<uint8_t>(random.Bits());
        const int64_t num_scales = rows * (cols / kMxfp4BlockSize);
        uint8_t* scales = NewScales(num_scales, skew);
        for (int64_t i = 0; i < num_scales; ++i) {
          scales[i] = static_cast<uint8_t>(random.Chance(0.02) ? random.Index(3) : 124 + random.Index(4));
        }
        return;
      }
      case WeightFormat::kNvfp4: {
        for (int64_t i = 0; i < rows * w.row_bytes(); ++i) codes[i] = static_cast<uint8_t>(random.Bits());
        const int64_t num_scales = rows * (cols / kNvfp4BlockSize);
        uint8_t* scales = NewScales(num_scales, skew);
        for (int64_t i = 0; i < num_scales; ++i) {  // 0x00 zero, 0x01 the smallest subnormal, 0x7E = 448
          scales[i] = static_cast<uint8_t>(random.Chance(0.04) ? random.Index(2) : 0x60 + random.Index(0x1F));
        }
        w.global_scale = static_cast<float>(random.Uniform(0.5, 1.5)) / 400.0f;
        return;
      }
      case WeightFormat::kMxfp4Tight:
      case WeightFormat::kNvfp4Tight:
        FillTight(random, codes, skew);
        return;
    }
  }
  QuantFixture(const QuantFixture&) = delete;
  QuantFixture& operator=(const QuantFixture&) = delete;
  QuantFixture(QuantFixture&&) = default;
  QuantFixture& operator=(QuantFixture&&) = default;

  const QuantTensor& tensor() const { return tensor_; }

  // Every weight, decoded exactly, [rows, cols].
  std::vector<double> Decoded() const {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(tensor_.rows * tensor_.cols));
    for (int64_t n = 0; n < tensor_.rows; ++n) {
      for (int64_t k = 0; k < tensor_.cols; ++k) values.push_back(WeightValue(tensor_, n, k));
    }
    return values;
  }

 private:
  // All 16 exponents, mostly the middle ones, and blocks of zeros with scales that are not allowed for other blocks.
  // Some NVFP4 scales are negative.
  void FillTight(Random& random, uint8_t* codes, size_t skew) {
    QuantTensor& w = tensor_;
    const bool nvfp4 = w.format == WeightFormat::kNvfp4Tight;
    const int64_t halves = nvfp4 ? 2 : 1, blocks = w.rows * (w.cols / 32);
    for (int64_t i = 0; i < w.rows * w.row_bytes(); ++i) codes[i] = static_cast<uint8_t>(random.Bits());
    uint8_t* scales = NewScales(blocks * halves, skew);
    w.global_scale = nvfp4 ? 0.125f : 1.0f;
    w.exponent_base = -12;
    for (int64_t i = 0; i < blocks; ++i) {
      const auto e = static_cast<int>(random.Chance(0.1) ? random.Index(16) : 4 + random.Index(9));  // above the base
      for (int64_t half = 0; half < halves; ++half) {
        uint8_t& scale = scales[i * halves + half];
        scale = nvfp4 ? static_cast<uint8_t>(E4m3PowerOfTwo(e - 9) | (random.Chance(0.1) ? 0x80 : 0))
                      : static_cast<uint8_t>(127 - 12 + e);
        if (!random.Chance(0.05)) continue;
        const int64_t bytes = 16 / halves;
        for (int64_t j = 0; j < bytes; ++j) codes[16 * i + half * bytes + j] &= 0x88;  // zeros of both signs
        scale = static_cast<uint8_t>(random.Index(0x7F));
      }
    }
  }

  template <typename T>
  static void Store(uint8_t* at, int64_t index, T value) {
    std::memcpy(at + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
  uint8_t* NewScales(int64_t bytes, size_t skew) {
    scales_.resize(static_cast<size_t>(bytes) + skew);
    tensor_.block_scale = scales_.data() + skew;
    return scales_.data() + skew;
  }

  QuantTensor tensor_;
  std::vector<uint8_t> codes_;
  std::vector<uint8_t> scales_;
};

}  // namespace dsv4::test
