// The op of ops/sample on the GPU against the sampler of dsv4/sampling.h: the same tokens, as
// tests/engine/sample_op_test.cc checks on the CPU.
#include "dsv4/sampling.h"
#include "support/guard_buffer.h"
#include "support/sample_fixture.h"
#include "support/sample_on_gpu.h"

namespace dsv4::test {
namespace {

TEST(CudaSample, ChoosesWhatTheSamplerChooses) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const int64_t v = 4000;
  for (int trial = 0; trial < 30; ++trial) {
    const SampleCase c = RandomSampleCase(random, v);
    auto sampler = Sampler::Create(c.params, v);
    sampler.value()->AddPrompt(c.prompt);
    SampleState state(c);
    for (int step = 0; step < 4; ++step) {
      GuardBuffer<float> logits({1, v}, RandomLogits(random, v));
      GuardBuffer<int32_t> got({1});
      SampleOnGpu({}, {.logits = logits.tensor(), .rows = &state.row, .tokens = got.tensor()});
      const auto want = sampler.value()->Sample(logits.span(), c.allowed);
      if (want.ok()) {
        ASSERT_EQ(got[0], want.value().id);
      } else {
        ASSERT_LT(got[0], 0);
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
