#include "tensor/codec/bf16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, EveryCodeSurvivesDecodeAndEncode) {
  for (uint32_t c = 0; c <= 0xFFFF; ++c) {
    const float x = Bf16ToF32(static_cast<uint16_t>(c));
    const bool nan = (c & 0x7F80) == 0x7F80 && (c & 0x7F) != 0;
    ASSERT_EQ(std::isnan(x), nan) << c;
    ASSERT_EQ(F32ToBf16(x), nan ? (c | 0x40) : c) << c;  // a NaN becomes quiet and keeps its sign
  }
}

TEST(Bf16, EveryMidpointRoundsToEvenAndItsNeighboursToTheNearer) {
  for (uint32_t c = 0; c < 0x7F80; ++c) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t low = c | sign,
                     high = low + 1;  // magnitudes ascend with the bits; beyond the largest comes infinity
      const uint32_t middle = (low << 16) | 0x8000u;
      ASSERT_EQ(F32ToBf16(FromBits(middle)), (c & 1) ? high : low) << low;
      ASSERT_EQ(F32ToBf16(FromBits(middle - 1)), low) << low;
      ASSERT_EQ(F32ToBf16(FromBits(middle + 1)), high) << low;
    }
  }
}

TEST(Bf16, LargestFloatBecomesInfinityAndEveryNanStaysNan) {
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(F32ToBf16(-std::numeric_limits<float>::infinity()), 0xFF80);
  for (const uint32_t bits : {0x7F800001u, 0x7F80FFFFu, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(RoundToBf16(FromBits(bits)))) << bits;
  }
}

TEST(Bf16, LoadsFromOddAddresses) {
  const uint8_t bytes[] = {0xEE, 0x80, 0x3F, 0x00, 0xC0};
  EXPECT_EQ(Bf16ToF32(LoadUnaligned<uint16_t>(bytes + 1, 0)), 1.0f);
  EXPECT_EQ(Bf16ToF32(LoadUnaligned<uint16_t>(bytes + 1, 1)), -2.0f);
}

}  // namespace
}  // namespace dsv4
