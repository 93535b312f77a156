#include "ops/rope_angles/rope_angles.h"

#include <cmath>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RopeAnglesCuda(const ExecContext& ctx, const RopeAnglesArgs& args);
}

namespace dsv4::test {
namespace {

// Both sides are correctly rounded but for a few float64 ulps before the rounding to float32: they may differ by one
// float32 ulp where the value lies that close to a tie, about once in 2^28.
TEST(CudaRopeAngles, MatchesReferenceAtAnyPosition) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  std::vector<int64_t> at = {0, 1, 2, 127, 128, 4095, 1'048'575};
  for (int i = 0; i < 2000; ++i) at.push_back(random.Index(1'048'576));
  for (const int64_t pairs : {1, 3, 32}) {
    std::vector<float> f = {1.0f};
    for (int64_t i = 1; i < pairs; ++i) f.push_back(static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(pairs))));
    const int64_t t = static_cast<int64_t>(at.size());
    GuardBuffer<int64_t> positions({t}, at);
    GuardBuffer<float> frequencies({pairs}, f), want({t, pairs, 2}), got({t, pairs, 2});
    RopeAngles({.reference_ops = true},
               {.positions = positions.tensor(), .frequencies = frequencies.tensor(), .cos_sin = want.tensor()});
    Mirror gpu;
    RopeAnglesCuda(gpu.ctx(), {.positions = gpu.In(positions.tensor()), .frequencies = gpu.In(frequencies.tensor()),
                               .cos_sin = gpu.Out(got.tensor())});
    gpu.Finish();
    EXPECT_TRUE(Near(got.span(), want.span(), 0, 0x1p-23));
    int64_t differ = 0;
    for (int64_t i = 0; i < got.size(); ++i) differ += got[i] != want[i];
    EXPECT_LE(differ, 1);
  }
}

}  // namespace
}  // namespace dsv4::test
