// Properties of linear's kernels for every rounding of their inputs.
#pragma once

#include <vector>

#include "ops/kernels.h"
#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {

// Few rows and many tokens: threads divide tokens, not rows.
inline void ExpectSplitByTokenKeepsBits(const std::vector<Kernel<LinearArgs>>& kernels, const QuantCase& kind,
                                        ActivationDtype activation, uint64_t seed) {
  Random random(seed);
  const int64_t num_tokens = 300, n = 6, k = 64;
  const QuantFixture w(random, kind, n, k);
  GuardBuffer<float> x({num_tokens, k}, random.Normals(num_tokens * k));
  ForEachKernel(kernels, [&](const auto run) {
    GuardBuffer<float> alone({num_tokens, n}), split({num_tokens, n});
    run({}, {.x = x.tensor(), .parts = {{w.tensor(), alone.tensor()}}, .activation = activation});
    run(TwoThreads(), {.x = x.tensor(), .parts = {{w.tensor(), split.tensor()}}, .activation = activation});
    EXPECT_TRUE(BitEqual(split.span(), alone.span()));
  });
}

}  // namespace dsv4::test
