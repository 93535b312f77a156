#include "kv/row_format.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::GuardBuffer;
using test::Random;

struct NamedFormat {
  std::string name;
  RowFormat format;
};

std::vector<NamedFormat> AllFormats() {
  return {
      {"kv fp8", KvRowFormat(KvDtype::kFp8, 512, 64)},      {"kv bf16", KvRowFormat(KvDtype::kBf16, 512, 64)},
      {"kv f32", KvRowFormat(KvDtype::kF32, 512, 64)},      {"kv fp8, short block", KvRowFormat(KvDtype::kFp8, 96, 16)},
      {"index fp4", IndexKeyFormat(IndexDtype::kFp4, 128)}, {"index bf16", IndexKeyFormat(IndexDtype::kBf16, 128)},
      {"index f32", IndexKeyFormat(IndexDtype::kF32, 128)}};
}

std::vector<float> ThroughMemory(const RowFormat& f, const std::vector<float>& x) {
  GuardBuffer<uint8_t> data(f.data_bytes), scale(f.scale_bytes);
  EncodeRow(f, x.data(), data.data(), scale.data());
  std::vector<float> y(x.size(), std::nanf(""));
  DecodeRow(f, data.data(), scale.data(), y.data());
  return y;
}

std::vector<float> Rounded(const RowFormat& f, std::vector<float> x) {
  RoundRow(f, x.data());
  return x;
}

TEST(RowFormat, SizesOfTheReleasedModels) {
  const RowFormat kv = KvRowFormat(KvDtype::kFp8, 512, 64);
  EXPECT_EQ(kv.data_bytes, 576);
  EXPECT_EQ(kv.scale_bytes, 8);
  EXPECT_EQ(kv.row_bytes(), 584);
  EXPECT_EQ(KvRowFormat(KvDtype::kBf16, 512, 64).row_bytes(), 1024);
  EXPECT_EQ(KvRowFormat(KvDtype::kF32, 512, 64).row_bytes(), 2048);
  EXPECT_EQ(IndexKeyFormat(IndexDtype::kFp4, 128).row_bytes(), 68);
  EXPECT_EQ(IndexKeyFormat(IndexDtype::kFp4, 128).data_bytes, 64);
  EXPECT_EQ(IndexKeyFormat(IndexDtype::kBf16, 128).row_bytes(), 256);
  EXPECT_EQ(IndexKeyFormat(IndexDtype::kF32, 128).row_bytes(), 512);
}

// Attention reads the step's own rows rounded and older ones from the cache. If one bit differed, the logits would
// depend on the prompt's chunks.
TEST(RowFormat, MemoryHoldsExactlyWhatRoundRowSays) {
  Random random(1);
  for (const NamedFormat& f : AllFormats()) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> x = round % 2 ? random.Hostiles(f.format.dim) : random.Normals(f.format.dim);
      if (round % 10 == 4) x.assign(x.size(), round % 20 == 4 ? 0.0f : -0.0f);
      if (round % 10 == 6) {
        for (float& v : x) v *= 1e-30f;
      }
      if (round % 10 == 8) {
        for (float& v : x) v *= 1e30f;
      }
      EXPECT_TRUE(BitEqual(ThroughMemory(f.format, x), Rounded(f.format, x))) << f.name << ", round " << round;
    }
    const std::vector<float> largest(static_cast<size_t>(f.format.dim), std::numeric_limits<float>::max());
    EXPECT_TRUE(BitEqual(ThroughMemory(f.format, largest), Rounded(f.format, largest))) << f.name;
  }
}

TEST(RowFormat, RoundingAgainChangesNothing) {
  Random random(2);
  for (const NamedFormat& f : AllFormats()) {
    for (int round = 0; round < 50; ++round) {
      const std::vector<float> once = Rounded(f.format,
                                              round % 2 ? random.Hostiles(f.format.dim) : random.Normals(f.format.dim));
      EXPECT_TRUE(BitEqual(Rounded(f.format, once), once)) << f.name;
    }
  }
}

TEST(RowFormat, NanAndInfinityShowInBothForms) {
  for (const NamedFormat& f : AllFormats()) {
    if (f.format.kind == RowFormat::Kind::kFp4) continue;  // E2M1 has no NaN: the contract excludes it
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(static_cast<size_t>(f.format.dim), 1.0f);
      x[3] = bad;
      x.back() = bad;
      const std::vector<float> y = ThroughMemory(f.format, x);
      EXPECT_TRUE(BitEqual(y, Rounded(f.format, x))) << f.name;
      EXPECT_FALSE(std::isfinite(y[3])) << f.name;
      EXPECT_FALSE(std::isfinite(y.back())) << f.name;
    }
  }
}

TEST(RowFormat, Fp8BytesByHand) {
  const RowFormat f = KvRowFormat(KvDtype::kFp8, 512, 64);
  std::vector<float> x(512, 0.0f);
  x[0] = 1.0f;      // block 0: scale 2^-8 (byte 119); 1.0 is code 256 = 0x78
  x[64] = -448.0f;  // block 1: scale 1 (byte 127); code -448 = 0xFE
  x[447] = 3.5f;    // block 6: 3.5/448 = 2^-7 exactly (byte 120); code 448 = 0x7E
  x[448] = 1.0f;    // RoPE channels in BF16: 0x3F80, low byte first
  x[511] = -2.0f;
  GuardBuffer<uint8_t> data(576), scale(8);
  EncodeRow(f, x.data(), data.data(), scale.data());
  EXPECT_EQ(data[0], 0x78);
  EXPECT_EQ(data[1], 0x00);
  EXPECT_EQ(data[64], 0xFE);
  EXPECT_EQ(data[447], 0x7E);
  EXPECT_EQ(data[448], 0x80);
  EXPECT_EQ(data[449], 0x3F);
  EXPECT_EQ(data[574], 0x00);
  EXPECT_EQ(data[575], 0xC0);
  const std::vector<uint8_t> want = {119, 127, 105, 105, 105, 105, 120, 0};  // empty blocks: 2^-22; then one pad byte
  EXPECT_EQ(scale.values(), want);
}

TEST(RowFormat, Fp4BytesByHand) {
  const RowFormat f = IndexKeyFormat(IndexDtype::kFp4, 64);
  std::vector<float> x(64, 0.0f);
  x[0] = 6.0f, x[1] = -0.5f;   // block 0: scale 1; low nibble = even channel: 7 | 9 << 4
  x[32] = 1.0f, x[33] = 0.3f;  // block 1: scale 2^-2 (1/6 = 2^-2.58); 4 is code 6; 1.2 rounds to 1, code 2
  GuardBuffer<uint8_t> data(32), scale(2);
  EncodeRow(f, x.data(), data.data(), scale.data());
  EXPECT_EQ(data[0], 0x97);
  EXPECT_EQ(data[16], 0x26);
  EXPECT_EQ(scale[0], 127);
  EXPECT_EQ(scale[1], 125);
  std::vector<float> y(64);
  DecodeRow(f, data.data(), scale.data(), y.data());
  EXPECT_EQ(y[1], -0.5f);
  EXPECT_EQ(y[32], 1.0f);
  EXPECT_EQ(y[33], 0.25f);
}

TEST(RowFormat, Fp8LeavesRopeChannelsInBf16) {
  Random random(3);
  const RowFormat f = KvRowFormat(KvDtype::kFp8, 512, 64);
  const std::vector<float> x = random.Normals(512);
  const std::vector<float> y = Rounded(f, x);
  for (size_t i = 448; i < 512; ++i) EXPECT_EQ(y[i], RoundToBf16(x[i]));
}

TEST(RowArray, RowsDoNotTouchEachOtherAtAnyCapacity) {
  Random random(4);
  for (const NamedFormat& f : AllFormats()) {
    for (const int64_t capacity : {1, 2, 7}) {
      GuardBuffer<uint8_t> memory(capacity * f.format.row_bytes());
      const RowArray rows{memory.data(), capacity, f.format};
      std::vector<std::vector<float>> want;
      for (int64_t r = 0; r < capacity; ++r) {
        want.push_back(random.Normals(f.format.dim));
        rows.Write(r, want.back().data());
      }
      for (int64_t r = capacity - 1; r >= 0; --r) {
        std::vector<float> y(static_cast<size_t>(f.format.dim));
        rows.Read(r, y.data());
        EXPECT_TRUE(BitEqual(y, Rounded(f.format, want[static_cast<size_t>(r)]))) << f.name;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
