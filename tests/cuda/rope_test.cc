#include "ops/rope/rope.h"

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RopeCuda(const ExecContext& ctx, const RopeArgs& args);
}

namespace dsv4::test {
namespace {

// Products and sums are rounded one by one on both sides: bit-equal.
TEST(CudaRope, BitEqualToReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const Shape& shape : {Shape{1, 1, 2}, Shape{3, 5, 13}, Shape{67, 3, 96}, Shape{2, 64, 512}}) {
    for (const int64_t pairs : {int64_t{1}, shape[2] / 2, shape[2] / 4}) {
      if (pairs == 0) continue;
      for (const bool inverse : {false, true}) {
        GuardBuffer<float> cs({shape[0], pairs, 2}, random.Normals(shape[0] * pairs * 2));
        GuardBuffer<float> x(shape, random.Hostiles(shape.num_elements())), want(shape, x.values());
        Rope({.reference_ops = true}, {.x = want.tensor(), .cos_sin = cs.tensor(), .inverse = inverse});
        Mirror gpu;
        RopeCuda(gpu.ctx(), {.x = gpu.Out(x.tensor()), .cos_sin = gpu.In(cs.tensor()), .inverse = inverse});
        gpu.Finish();
        EXPECT_TRUE(BitEqual(x.span(), want.span())) << shape.ToString() << " " << pairs;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
