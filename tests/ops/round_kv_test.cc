#include "ops/round_kv/round_kv.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4::test {
namespace {

void RoundKvOnGpu(const ExecContext&, const RoundKvArgs& a) {
  Mirror gpu;
  RoundKv(gpu.ctx(), {.kv = gpu.Out(a.kv), .format = a.format});
  gpu.Finish();
}

DSV4_DEVICE_TEST(RoundKv, RowsBecomeWhatTheCacheWillHold) {
  Random random(1);
  const int64_t t = 21, dh = 96;
  std::vector<float> before;
  for (int64_t r = 0; r < t; ++r) {
    const std::vector<float> row = r % 3 ? random.Normals(dh, r % 2 ? 1e-2f : 100.0f) : random.Hostiles(dh);
    before.insert(before.end(), row.begin(), row.end());
  }
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    const RowFormat format = KvRowFormat(dtype, dh, 16);
    for (const auto& c : Places(on, RoundKv, RoundKvOnGpu)) {
      GuardBuffer<float> kv(Shape{t, dh}, before);
      c.run({.kv = kv.tensor(), .format = format});
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

DSV4_DEVICE_TEST(RoundKv, BitEqualToReference) {
  Random random(2);
  for (const auto& [dh, dr] : {std::pair<int64_t, int64_t>{96, 16}, {44, 16}, {512, 64}, {70, 3}, {2, 2}}) {
    for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
      const int64_t t = 37;
      std::vector<float> before;
      for (int64_t r = 0; r < t; ++r) {
        std::vector<float> row = r % 3 ? random.Normals(dh, r % 2 ? 1e-2f : 100.0f) : random.Hostiles(dh);
        if (r == 5) row[0] = NAN;
        if (r == 7) std::fill(row.begin(), row.end(), 0.0f);
        if (r == 8) row[static_cast<size_t>(dh / 2)] = 3e38f;
        before.insert(before.end(), row.begin(), row.end());
      }
      GuardBuffer<float> want({t, dh}, before);
      const RowFormat format = KvRowFormat(dtype, dh, dr);
      RoundKv({.reference_ops = true}, {.kv = want.tensor(), .format = format});
      for (const auto& c : Places(on, RoundKv, RoundKvOnGpu)) {
        GuardBuffer<float> got({t, dh}, before);
        c.run({.kv = got.tensor(), .format = format});
        EXPECT_TRUE(BitEqual(got.span(), want.span())) << c.name << " " << dh << " " << static_cast<int>(dtype);
      }
    }
  }
}

TEST(RoundKv, Fp8IsHandComputedAndRopeChannelsAreBf16) {
  std::vector<float> x(96, 0.0f);
  x[0] = 1, x[1] = 0.3f;    // block of 64: scale 2^-8; 76.8 is nearest to 80: 0.3125
  x[64] = 448, x[65] = 17;  // block of the last 16: scale 1; 17 is between 16 and 18: a tie, to 16
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
}  // namespace dsv4::test
