#include "ops/pack_weight/pack_weight.h"

#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

// A weight read back from its tile by the description in pack_weight.h, written without the packing code.
double TileValue(const QuantTensor& w, int64_t n, int64_t k) {
  const int64_t row = n % 16, column = k % 64, lane = row % 8 * 4 + column / 16, r = row / 8, in_lane = column % 16;
  const uint8_t* tile = w.codes + (n / 16 * CeilDiv(w.cols, 64) + k / 64) * TileBytes(w.format);
  switch (w.format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4: {
      uint16_t half;
      std::memcpy(&half, tile + 16 * lane + 8 * r + in_lane / 8 * 4 + in_lane % 2 * 2, 2);
      const int m = static_cast<int>(in_lane % 8 / 2);
      const uint32_t code = m < 3 ? ((half >> (15 - 3 * m)) & 1u) << 3 | ((half >> (6 - 3 * m)) & 7u)
                                  : ((half >> 14) & 1u) << 3 | ((half >> 10) & 3u) << 1 | ((half >> 13) & 1u);
      const uint8_t scale = tile[512 + 2 * lane + r];
      return static_cast<double>(E2m1ToF32(static_cast<uint8_t>(code))) *
             static_cast<double>(w.format == WeightFormat::kNvfp4 ? E4m3ToF32(scale) : E8m0ToF32(scale)) *
             static_cast<double>(w.global_scale);
    }
    case WeightFormat::kFp8Block: {
      constexpr int64_t kPlace[4] = {0, 2, 1, 3};  // of columns 0 .. 3 of a step
      const uint8_t code = tile[512 * r + 16 * lane + in_lane / 4 * 4 + kPlace[in_lane % 4]];
      return static_cast<double>(E4m3ToF32(code)) *
             static_cast<double>(LoadUnaligned<float>(w.block_scale, n / 16 * CeilDiv(w.cols, 128) + k / 128));
    }
    case WeightFormat::kBf16: {
      const int64_t step = in_lane / 4, i = in_lane % 4;
      return static_cast<double>(Bf16ToF32(LoadUnaligned<uint16_t>(tile + 512 * step + 16 * lane, i / 2 * 4 + r * 2 + i % 2)));
    }
    case WeightFormat::kF32: break;
  }
  return 0;
}

class PackWeightFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, PackWeightFormats, ::testing::Values(QuantCase{WeightFormat::kBf16},
                                                                       QuantCase{WeightFormat::kFp8Block, DType::kF8E8M0},
                                                                       QuantCase{WeightFormat::kFp8Block, DType::kF32},
                                                                       QuantCase{WeightFormat::kMxfp4}, QuantCase{WeightFormat::kNvfp4}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(PackWeightFormats, TilesHoldEveryWeightAndZerosAround) {
  Random random(1);
  const int64_t granule = ColumnGranule(GetParam().format);
  for (const auto& [n, width] : {std::pair{int64_t{1}, int64_t{1}}, {16, 64}, {17, 65}, {33, 130}, {5, 300}, {160, 128}}) {
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

}  // namespace
}  // namespace dsv4::test
