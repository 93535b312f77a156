#include "ops/pack_weight/tight.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/quant_fixture.h"
#include "support/random.h"
#include "tensor/codec/weight.h"

namespace dsv4::test {
namespace {

// A matrix whose scales and codes are set by hand. NVFP4's global scale is 2^-3.
struct ByHand {
  ByHand(WeightFormat format, int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols / 2), 0x21), tensor{.format = format, .rows = rows, .cols = cols} {
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    scales.assign(static_cast<size_t>(rows * cols / InfoOf(format).block_cols),
                  nvfp4 ? E4m3PowerOfTwo(0) : uint8_t{127});
    tensor.codes = codes.data(), tensor.block_scale = scales.data();
    if (nvfp4) tensor.global_scale = 0.125f;
  }
  bool is_nvfp4() const { return tensor.format == WeightFormat::kNvfp4; }
  // Sets the exponent of 32 columns; for NVFP4 of both halves.
  void SetExponent(size_t block, int e) {
    if (!is_nvfp4())
      scales[block] = static_cast<uint8_t>(127 + e);
    else
      scales[2 * block] = scales[2 * block + 1] = E4m3PowerOfTwo(e + 3);
  }
  void ClearCodes(size_t block) {
    for (size_t i = 0; i < 16; ++i) codes[16 * block + i] = i % 2 == 0 ? 0x80 : 0x08;  // zeros of both signs
  }
  std::vector<uint8_t> codes, scales;
  QuantTensor tensor;
};

struct Tiles {
  explicit Tiles(const QuantTensor& w) : bytes(static_cast<size_t>(PackedCodeBytes(w))) {
    const PackWeightArgs args{.w = w, .codes = bytes.data()};
    PackWeight({}, args);
    packed = PackedView(args);
  }
  // The number at row n, column k of the first tile, as LaneTile and RawWeights decode it from a tile's bytes.
  float At(int64_t n, int64_t k) const {
    const int64_t lane = n % 8 * 4 + k / 16, r = n / 8;
    Fp4Words words;
    std::memcpy(&words, bytes.data() + 16 * lane + 8 * r, 8);
    const auto code = static_cast<uint8_t>(UnplaceFp4(words.low, words.high) >> (4 * (k % 16)) & 15);
    if (IsTight(packed.format))
      return std::ldexp(E2m1ToF32(code), bytes[static_cast<size_t>(512 + lane / 2)] >> (4 * r) & 15) *
             packed.global_scale;
    const uint8_t scale = bytes[static_cast<size_t>(512 + 2 * lane + r)];
    const float value = packed.format == WeightFormat::kMxfp4 ? E8m0ToF32(scale)
                                                              : E4m3ToF32(static_cast<uint8_t>(E4m3OfTileScale(scale)));
    return E2m1ToF32(code) * value * packed.global_scale;
  }
  std::vector<uint8_t> bytes;
  QuantTensor packed;
};

QuantTensor AsTight(QuantTensor w) {
  w.exponent_base = static_cast<int16_t>(FindTightBase(w).value());
  w.format = TightOf(w.format);
  return w;
}

class Tight : public ::testing::TestWithParam<WeightFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, Tight, ::testing::Values(WeightFormat::kMxfp4, WeightFormat::kNvfp4),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

// Every code at every exponent: the bits of the wider tile, signs of zeros included.
TEST_P(Tight, TilesHoldTheSameBitsInFewerBytes) {
  ByHand m(GetParam(), 16, 64);  // 32 blocks: exponents 0 .. 15 twice
  for (size_t block = 0; block < 32; ++block) {
    m.SetExponent(block, static_cast<int>(block % 16) - 10);
    for (size_t i = 0; i < 16; ++i) m.codes[16 * block + i] = static_cast<uint8_t>((i * 17 + block) & 255);
  }
  const QuantTensor tight = AsTight(m.tensor);
  EXPECT_EQ(tight.exponent_base, -10);
  EXPECT_EQ(PackedCodeBytes(tight), 528);
  const Tiles narrow(tight), wide(m.tensor);
  EXPECT_EQ(narrow.packed.global_scale, 0x1p-10f);
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t k = 0; k < 64; ++k) {
      const auto want = static_cast<float>(WeightValue(m.tensor, n, k));
      EXPECT_EQ(std::bit_cast<uint32_t>(narrow.At(n, k)), std::bit_cast<uint32_t>(want)) << n << ", " << k;
      EXPECT_EQ(std::bit_cast<uint32_t>(wide.At(n, k)), std::bit_cast<uint32_t>(want)) << n << ", " << k;
    }
  }
}

TEST_P(Tight, SixteenExponentsFitAndSeventeenDoNot) {
  for (const int least : {-9, -3}) {
    ByHand m(GetParam(), 33, 96);
    for (size_t block = 0; block < 99; ++block) m.SetExponent(block, least + 5);
    m.SetExponent(70, least + 12), m.SetExponent(98, least);
    if (GetParam() == WeightFormat::kMxfp4) {
      m.SetExponent(3, least + 15);
      EXPECT_EQ(FindTightBase(m.tensor), least);
      m.SetExponent(3, least + 16);
    } else {  // E4M3 has 18 powers of two
      m.SetExponent(3, -12 + 17), m.SetExponent(98, -12 + 2);
      EXPECT_EQ(FindTightBase(m.tensor), -10);
      m.SetExponent(98, -12 + 1);
    }
    EXPECT_EQ(FindTightBase(m.tensor), std::nullopt);
  }
}

TEST_P(Tight, BlocksOfZerosMayHaveAnyScaleButNan) {
  ByHand m(GetParam(), 4, 64);
  const size_t per_32 = m.is_nvfp4() ? 2 : 1;
  m.ClearCodes(5);
  for (uint32_t scale = 0; scale < 256; ++scale) {
    for (size_t half = 0; half < per_32; ++half) m.scales[5 * per_32 + half] = static_cast<uint8_t>(scale);
    const bool nan = m.is_nvfp4() ? (scale & 0x7F) == 0x7F : scale == 255;
    const std::optional<int> base = FindTightBase(m.tensor);
    ASSERT_EQ(base.has_value(), !nan) << scale;
    if (nan) continue;
    const QuantTensor tight = AsTight(m.tensor);
    const Tiles tiles(tight);
    for (int64_t n = 0; n < 4; ++n) {
      for (int64_t k = 0; k < 64; ++k) ASSERT_EQ(tiles.At(n, k), WeightValue(m.tensor, n, k)) << scale;
    }
  }
  // One code more, and its scale counts.
  m.codes[16 * 5 + 7] = 0x10;
  for (size_t half = 0; half < per_32; ++half) m.scales[5 * per_32 + half] = m.is_nvfp4() ? 0x39 : 127 + 16;
  EXPECT_EQ(FindTightBase(m.tensor), std::nullopt);
}

// A span that only a block of zeros makes too wide, seen before the blocks that count.
TEST_P(Tight, BlocksOfZerosDoNotWidenTheSpan) {
  ByHand m(GetParam(), 2, 64);
  m.SetExponent(0, -12), m.ClearCodes(0);
  m.SetExponent(1, 5), m.SetExponent(2, 5), m.SetExponent(3, -6);
  EXPECT_EQ(FindTightBase(m.tensor), -6);
}

TEST_P(Tight, NothingButZeros) {
  ByHand m(GetParam(), 1, 64);
  m.ClearCodes(0), m.ClearCodes(1);
  for (uint8_t& s : m.scales) s = m.is_nvfp4() ? 0 : 254;
  const Tiles tiles(AsTight(m.tensor));
  for (int64_t k = 0; k < 64; ++k) EXPECT_EQ(tiles.At(0, k), 0.0f);
}

TEST(TightMxfp4, BasesOutsideFloat32StayWide) {
  for (const auto& [exponent, fits] : {std::pair{-127, false}, {-126, true}, {98, true}, {99, false}}) {
    ByHand m(WeightFormat::kMxfp4, 1, 64);
    for (size_t block = 0; block < 2; ++block) m.SetExponent(block, exponent);
    EXPECT_EQ(FindTightBase(m.tensor).has_value(), fits) << exponent;
  }
}

TEST(TightNvfp4, OnlyCastsOfMxfp4Are) {
  const auto base_of = [](auto change) {
    ByHand m(WeightFormat::kNvfp4, 3, 96);
    change(m);
    return FindTightBase(m.tensor);
  };
  EXPECT_EQ(base_of([](ByHand&) {}), -3);
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[7] = E4m3PowerOfTwo(1); }), std::nullopt) << "halves of 32 columns differ";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[6] = m.scales[7] = 0x3C; }), std::nullopt) << "1.5";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[6] = m.scales[7] = 3; }), std::nullopt) << "subnormal, 3 * 2^-9";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[6] = m.scales[7] = 4; }), -10) << "subnormal, 2^-7";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[7] |= 0x80; }), -3) << "a negative scale turns signs";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[7] = 0; }), -3) << "a scale of zero makes zeros";
  EXPECT_EQ(base_of([](ByHand& m) { m.scales[7] = 0x7F; }), std::nullopt) << "NaN";
  for (const float global : {0.1f, -0.125f, 0.0f, 0x1p-140f, std::numeric_limits<float>::infinity()})
    EXPECT_EQ(base_of([&](ByHand& m) { m.tensor.global_scale = global; }), std::nullopt) << global;
  // K of an odd number of blocks: the last is alone.
  ByHand m(WeightFormat::kNvfp4, 2, 48);
  m.scales[2] = m.scales[5] = E4m3PowerOfTwo(4);
  EXPECT_EQ(FindTightBase(m.tensor), -3);
}

// Packing gives the fixture's values; the scan finds the base at any address.
TEST_P(Tight, RandomMatricesAreFound) {
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    const QuantFixture fixture(random, {TightOf(GetParam())}, 1 + random.Index(40), 32 * (1 + random.Index(9)));
    QuantTensor w = fixture.tensor();
    w.format = GetParam();
    const std::optional<int> base = FindTightBase(w);
    ASSERT_TRUE(base.has_value());
    EXPECT_GE(*base, fixture.tensor().exponent_base);
    const QuantFixture wide(random, {GetParam()}, 40, 288);
    EXPECT_EQ(FindTightBase(wide.tensor()), std::nullopt);
  }
}

}  // namespace
}  // namespace dsv4::test
