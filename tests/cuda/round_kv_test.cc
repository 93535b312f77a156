#include "ops/round_kv/round_kv.h"

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RoundKvCuda(const ExecContext& ctx, const RoundKvArgs& args);
}

namespace dsv4::test {
namespace {

TEST(CudaRoundKv, BitEqualToReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const auto& [dh, dr] : {std::pair<int64_t, int64_t>{96, 16}, {44, 16}, {512, 64}, {70, 3}, {2, 2}}) {
    for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
      const int64_t t = 37;
      std::vector<float> before;
      for (int64_t r = 0; r < t; ++r) {
        std::vector<float> row = r % 3 ? random.Normals(dh, r % 2 ? 1e-2f : 100.0f) : random.Hostiles(dh);
        if (r == 5) row[0] = NAN;
        if (r == 7) std::fill(row.begin(), row.end(), 0.0f);
        if (r == 8) row[dh / 2] = 3e38f;
        before.insert(before.end(), row.begin(), row.end());
      }
      GuardBuffer<float> want({t, dh}, before), got({t, dh}, before);
      const RowFormat format = KvRowFormat(dtype, dh, dr);
      RoundKv({.reference_ops = true}, {.kv = want.tensor(), .format = format});
      Mirror gpu;
      RoundKvCuda(gpu.ctx(), {.kv = gpu.Out(got.tensor()), .format = format});
      gpu.Finish();
      EXPECT_TRUE(BitEqual(got.span(), want.span())) << dh << " " << static_cast<int>(dtype);
    }
  }
}

}  // namespace
}  // namespace dsv4::test
