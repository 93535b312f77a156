#include "ops/round_kv/round_kv.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::GuardBuffer;
using test::Random;

TEST(RoundKv, RowsBecomeWhatTheCacheWillHold) {
  Random random(1);
  const int64_t t = 21, dh = 96;
  std::vector<float> before;
  for (int64_t r = 0; r < t; ++r) {
    const std::vector<float> row = r % 3 ? random.Normals(dh, r % 2 ? 1e-2f : 100.0f) : random.Hostiles(dh);
    before.insert(before.end(), row.begin(), row.end());
  }
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    const RowFormat format = KvRowFormat(dtype, dh, 16);
    for (const test::NamedContext& c : test::AllContexts()) {
      GuardBuffer<float> kv(Shape{t, dh}, before);
      RoundKv(c.ctx, {.kv = kv.tensor(), .format = format});
      for (int64_t r = 0; r < t; ++r) {
        // Through the cache's bytes.
        GuardBuffer<uint8_t> bytes(format.row_bytes());
        std::vector<float> want(static_cast<size_t>(dh));
        const RowArray cache{bytes.data(), 1, format};
        cache.Write(0, before.data() + r * dh);
        cache.Read(0, want.data());
        EXPECT_TRUE(BitEqual(kv.row(r), want)) << c.name << ", row " << r;
      }
      if (dtype == KvDtype::kF32) {
        EXPECT_TRUE(BitEqual(kv.span(), before)) << c.name;
      }
    }
  }
}

TEST(RoundKv, Fp8IsHandComputedAndRopeChannelsAreBf16) {
  std::vector<float> x(96, 0.0f);
  x[0] = 1, x[1] = 0.3f;    // block of 64: scale 2^-8; 76.8 is nearest to 80: 0.3125
  x[64] = 448, x[65] = 17;  // block of the last 16: scale 1; 17 lies between 16 and 18: a tie, to 16
  x[80] = 1 + 0x1p-8f;      // RoPE: BF16 has steps of 2^-7 there: a tie, to 1
  x[81] = 0.3f;
  GuardBuffer<float> kv(Shape{1, 96}, x);
  RoundKv({}, {.kv = kv.tensor(), .format = KvRowFormat(KvDtype::kFp8, 96, 16)});
  EXPECT_EQ(kv[0], 1.0f);
  EXPECT_EQ(kv[1], 0.3125f);
  EXPECT_EQ(kv[64], 448.0f);
  EXPECT_EQ(kv[65], 16.0f);
  EXPECT_EQ(kv[80], 1.0f);
  EXPECT_EQ(kv[81], RoundToBf16(0.3f));
}

TEST(RoundKvDeathTest, RefusesRowsOfAnotherWidth) {
  GuardBuffer<float> kv(Shape{1, 95});
  EXPECT_DEATH(RoundKv({}, {.kv = kv.tensor(), .format = KvRowFormat(KvDtype::kFp8, 96, 16)}), "95 vs 96");
}

}  // namespace
}  // namespace dsv4
