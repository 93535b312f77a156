#include "ops/pack_weight/pack_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

// IEEE binary16.
float HalfToF32(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31)
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  return sign * std::ldexp(static_cast<float>(exponent > 0 ? 1024 + mantissa : mantissa), std::max(exponent, 1) - 25);
}

// Reads a weight from its tile by the description in pack_weight.h, without the packing code.
double TileValue(const QuantTensor& w, int64_t n, int64_t k) {
  const int64_t row = n % 16, column = k % 64, lane = row % 8 * 4 + column / 16, r = row / 8, in_lane = column % 16;
  const uint8_t* tile = w.codes + (n / 16 * CeilDiv(w.cols, 64) + k / 64) * TileBytes(w.format);
  switch (w.format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4Tight:
    case WeightFormat::kMxfp4Tight: {
      uint16_t halves[2];  // of the row's two words, on the column's side
      for (int64_t i = 0; i < 2; ++i) std::memcpy(&halves[i], tile + 16 * lane + 8 * r + 4 * i + in_lane % 2 * 2, 2);
      const int m = static_cast<int>(in_lane % 8 / 2);
      uint32_t code;
      if (m < 3) {
        const uint32_t half = halves[in_lane / 8];
        code = (half >> (15 - 3 * m) & 1u) << 3 | (half >> (6 - 3 * m) & 7u);
      } else {
        const uint32_t rest = halves[0] >> 8u | (halves[1] & 0xFF00u);
        const auto bits = in_lane < 8 ? std::array{14, 3, 6, 5} : std::array{10, 13, 2, 11};
        code = 0;
        for (const int bit : bits) code = code << 1 | (rest >> bit & 1u);
      }
      if (IsTight(w.format)) {
        const int exponent = tile[512 + row % 8 * 2 + column / 32] >> (4 * r) & 15;
        return std::ldexp(static_cast<double>(E2m1ToF32(static_cast<uint8_t>(code))), exponent) *
               static_cast<double>(w.global_scale);
      }
      const uint8_t scale = tile[512 + 2 * lane + r];
      const double factor = w.format == WeightFormat::kNvfp4
                                ? static_cast<double>(HalfToF32(static_cast<uint16_t>(scale << 7))) / 64
                                : static_cast<double>(E8m0ToF32(scale));
      return static_cast<double>(E2m1ToF32(static_cast<uint8_t>(code))) * factor * static_cast<double>(w.global_scale);
    }
    case WeightFormat::kFp8Block: {
      constexpr int64_t kPlace[4] = {0, 2, 1, 3};  // of columns 0 .. 3 of a step
      const uint8_t code = tile[512 * r + 16 * lane + in_lane / 4 * 4 + kPlace[in_lane % 4]];
      return static_cast<double>(E4m3ToF32(code)) *
             static_cast<double>(LoadUnaligned<float>(w.block_scale, n / 16 * CeilDiv(w.cols, 128) + k / 128));
    }
    case WeightFormat::kBf16: {
      const int64_t step = in_lane / 4, i = in_lane % 4;
      return static_cast<double>(
          Bf16ToF32(LoadUnaligned<uint16_t>(tile + 512 * step + 16 * lane, i / 2 * 4 + r * 2 + i % 2)));
    }
    case WeightFormat::kF32:
      break;
  }
  return 0;
}

class PackWeightFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, PackWeightFormats,
                         ::testing::Values(QuantCase{WeightFormat::kBf16},
                                           QuantCase{WeightFormat::kFp8Block, DType::kF8E8M0},
                                           QuantCase{WeightFormat::kFp8Block, DType::kF32},
                                           QuantCase{WeightFormat::kMxfp4}, QuantCase{WeightFormat::kNvfp4},
                                           QuantCase{WeightFormat::kMxfp4Tight}, QuantCase{WeightFormat::kNvfp4Tight}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(PackWeightFormats, TilesHoldEveryWeightAndZerosAround) {
  Random random(1);
  const int64_t granule = ColumnGranule(GetParam().format);
  for (const auto& [n, width] :
       {std::pair{int64_t{1}, int64_t{1}}, {16, 64}, {17, 65}, {33, 130}, {5, 300}, {160, 128}}) {
    const int64_t k = CeilDiv(width, granule) * granule;
    for (const int64_t offset : {int64_t{0}, int64_t{112}}) {
      const QuantFixture w(random, GetParam(), n, k, {.scale_row_offset = offset});
      GuardBuffer<uint8_t> codes(PackedCodeBytes(w.tensor())), scales(PackedScaleBytes(w.tensor()));
      const PackWeightArgs args{.w = w.tensor(), .codes = codes.data(), .block_scale = scales.data()};
      PackWeight({}, args);
      const QuantTensor packed = PackedView(args);
      EXPECT_EQ(packed.layout, WeightLayout::kTiles);
      for (int64_t row = 0; row < CeilDiv(n, 16) * 16; ++row) {
        for (int64_t column = 0; column < CeilDiv(k, 64) * 64; ++column) {
          const bool inside = row < n && column < k;
          ASSERT_EQ(TileValue(packed, row, column), inside ? WeightValue(w.tensor(), row, column) : 0.0)
              << "N " << n << " K " << k << " at " << row << ", " << column;
        }
      }
    }
  }
}

TEST(PackWeight, ScalesOfTilesAreTheMiddleOfFp16AndBf16Numbers) {
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t scale = TileScale(code);
    const float want = std::fabs(E4m3ToF32(static_cast<uint8_t>(code)));
    const float half = HalfToF32(static_cast<uint16_t>(scale << 7)),
                brain = Bf16ToF32(static_cast<uint16_t>((scale << 4) + 0x7000));
    EXPECT_LT(scale, 256u);
    EXPECT_EQ(E4m3OfTileScale(scale), code & 0x7Fu);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(half) && std::isnan(brain)) << code;
      continue;
    }
    EXPECT_EQ(half, 0x1p6f * want) << code;
    if (want > 0) {  // codes under a zero are zeros
      EXPECT_EQ(brain, 0x1p118f * want) << code;
    }
  }
}

TEST(PackWeight, NegativeScalesTurnCodesAndZeroEmptiesThem) {
  Random random(2);
  const QuantFixture fixture(random, {WeightFormat::kNvfp4}, 256, 64, {.unaligned = false});
  QuantTensor w = fixture.tensor();
  std::vector<uint8_t> scales(256 * 4);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i / 4);  // one row each
  w.block_scale = scales.data();
  GuardBuffer<uint8_t> codes(PackedCodeBytes(w));
  const PackWeightArgs args{.w = w, .codes = codes.data()};
  PackWeight({}, args);
  const QuantTensor packed = PackedView(args);
  for (int64_t row = 0; row < 256; ++row) {
    for (int64_t column = 0; column < 64; ++column) {
      const double want = WeightValue(w, row, column), got = TileValue(packed, row, column);
      ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << row << ", " << column;
    }
  }
}

TEST(PackWeight, PlacedCodesComeBack) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t codes = i < 256 ? static_cast<uint64_t>(i % 16) << (i / 16 * 4) : random.Bits();
    const Fp4Words words = PlaceFp4(codes);
    ASSERT_EQ(UnplaceFp4(words.low, words.high), codes);
  }
}

// A copy of `bytes` that begins `skew` bytes after an aligned address, as tensors of a file may.
std::vector<uint8_t> Skewed(const uint8_t* bytes, int64_t count, int64_t skew) {
  std::vector<uint8_t> shifted(static_cast<size_t>(skew + count));
  if (count > 0) std::memcpy(shifted.data() + skew, bytes, static_cast<size_t>(count));
  return shifted;
}

// Packs on the device; `skew` as above.
void PackOn(On on, const PackWeightArgs& a, int64_t skew) {
  const std::vector<uint8_t> codes = Skewed(a.w.codes, a.w.rows * a.w.row_bytes(), skew);
  QuantTensor from_first_scale = a.w;
  from_first_scale.rows += a.w.scale_row_offset;
  const std::vector<uint8_t> scales = Skewed(a.w.block_scale, FileScaleBytes(from_first_scale), skew);
  PackWeightArgs b = a;
  if (on == On::kCpu) {
    b.w.codes = codes.data() + skew;
    if (a.w.quantised()) b.w.block_scale = scales.data() + skew;
    PackWeight({}, b);
    return;
  }
  Mirror gpu;
  b.w.codes = gpu.Array(codes) + skew;
  if (a.w.quantised()) b.w.block_scale = gpu.Array(scales) + skew;
  b.codes = static_cast<uint8_t*>(gpu.Out({a.codes, DType::kU8, {PackedCodeBytes(a.w)}}).data);
  b.block_scale = static_cast<uint8_t*>(gpu.Out({a.block_scale, DType::kU8, {PackedScaleBytes(a.w)}}).data);
  PackWeight(gpu.ctx(), b);
  gpu.Finish();
}

DSV4_DEVICE_TEST(PackWeight, SameBytesAsTheReference) {
  Random random(1);
  for (const QuantCase kind : ExpertQuantCases()) {
    if (kind.format == WeightFormat::kF32) continue;
    const int64_t granule = ColumnGranule(kind.format);
    for (const auto& [n, width] :
         {std::pair{int64_t{1}, int64_t{1}}, {16, 64}, {17, 65}, {33, 131}, {5, 300}, {250, 16}, {144, 1024}}) {
      const int64_t k = CeilDiv(width, granule) * granule;
      for (const int64_t offset : {int64_t{0}, int64_t{16}, int64_t{112}}) {
        const QuantFixture w(random, kind, n, k, {.unaligned = false, .scale_row_offset = offset});
        GuardBuffer<uint8_t> want(PackedCodeBytes(w.tensor())), want_scales(PackedScaleBytes(w.tensor()));
        PackWeight({.reference_ops = true}, {.w = w.tensor(), .codes = want.data(), .block_scale = want_scales.data()});
        for (const int64_t skew : {0, 1, 8}) {
          SCOPED_TRACE(StrCat(kind.name(), " N ", n, " K ", k, " offset ", offset, " skew ", skew));
          GuardBuffer<uint8_t> codes(want.size()), scales(want_scales.size());
          PackOn(on, {.w = w.tensor(), .codes = codes.data(), .block_scale = scales.data()}, skew);
          EXPECT_EQ(codes.values(), want.values());
          EXPECT_EQ(scales.values(), want_scales.values());
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
