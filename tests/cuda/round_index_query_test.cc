#include "ops/round_index_query/round_index_query.h"

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RoundIndexQueryCuda(const ExecContext& ctx, const RoundIndexQueryArgs& args);
}

namespace dsv4::test {
namespace {

// The rotation adds in the reference's order, so that no code can flip.
TEST(CudaRoundIndexQuery, BitEqualToReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t di : {32, 64, 128, 256}) {
    for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
      for (const auto& [t, ni] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 64}}) {
        std::vector<float> before;
        for (int64_t r = 0; r < t * ni; ++r) {
          std::vector<float> row = r % 3 ? random.Normals(di, r % 2 ? 1e-3f : 1.0f) : random.Hostiles(di);
          if (r == 4) std::fill(row.begin(), row.end(), 0.0f);
          before.insert(before.end(), row.begin(), row.end());
        }
        GuardBuffer<float> want({t, ni, di}, before), got({t, ni, di}, before);
        RoundIndexQuery({.reference_ops = true}, {.q = want.tensor(), .dtype = dtype});
        Mirror gpu;
        RoundIndexQueryCuda(gpu.ctx(), {.q = gpu.Out(got.tensor()), .dtype = dtype});
        gpu.Finish();
        EXPECT_TRUE(BitEqual(got.span(), want.span())) << di << " " << static_cast<int>(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
