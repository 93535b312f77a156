#include "ops/window_append/window_append.h"

#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void WindowAppendCuda(const ExecContext& ctx, const WindowAppendArgs& args);
}

namespace dsv4::test {
namespace {

// The whole fixed block has the bytes that the CPU leaves, slots that nobody wrote included.
TEST(CudaWindowAppend, SameBytesAsReference) {
  DSV4_GPU_OR_SKIP();
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    for (const bool full : {false, true}) {
      const KvSpec spec = full ? FullKvSpec({0, 4, 0}, dtype) : TinyKvSpec({0, 4, 0}, dtype);
      const std::vector<SequenceStep> steps = {{0, 1}, {0, 300}, {127, 2}, {500, 128}, {130, 0}, {1000, 129}, {0, 128}, {255, 1}};
      CacheFixture want(spec, steps), got(spec, steps);
      Random random(7);
      const int64_t t = want.num_tokens(), dh = spec.head_dim;
      std::vector<float> rows = random.Normals(t * dh);
      const std::vector<float> hostile = random.Hostiles(40 * dh);
      std::copy(hostile.begin(), hostile.end(), rows.begin());
      GuardBuffer<float> kv({t, dh}, rows);
      WindowAppend({.reference_ops = true}, {.kv = kv.tensor(), .cache = want.View(2)});
      Mirror gpu;
      WindowAppendCuda(gpu.ctx(), {.kv = gpu.In(kv.tensor()), .cache = gpu.Cache(got.View(2))});
      gpu.Finish();
      for (size_t s = 0; s < steps.size(); ++s) {
        const size_t bytes = static_cast<size_t>(want.layout().fixed_bytes);
        EXPECT_EQ(std::memcmp(want.sequences()[s].fixed, got.sequences()[s].fixed, bytes), 0) << s;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
