#include "ops/q_prepare/q_prepare.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/round_index_query/hadamard.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
namespace {

using test::BitEqual;
using test::CacheFixture;
using test::GuardBuffer;
using test::Random;

// Angle 0 leaves the rotation out, a weight of ones the scaling: what is left can be written down.
TEST(QPrepare, NormsRoundsAndAppends) {
  Random random(1);
  const KvSpec spec = test::TinyKvSpec({4});
  for (const test::NamedContext& c : test::AllContexts()) {
    CacheFixture cache(spec, {{5, 1}, {130, 1}, {7, 0}});
    const int64_t t = 2, n = 3, ni = 2, dh = spec.head_dim, di = spec.index_head_dim;
    GuardBuffer<float> q({t, n, dh}, random.Normals(t * n * dh, 4)), kv({t, dh}, random.Normals(t * dh)), iq({t, ni, di}, random.Normals(t * ni * di));
    const std::vector<float> q0 = q.values(), iq0 = iq.values();
    GuardBuffer<float> ones({dh}, std::vector<float>(static_cast<size_t>(dh), 1.0f)), cs({t, spec.rope_dim / 2, 2});
    for (int64_t i = 0; i < cs.size(); ++i) cs[i] = i % 2 == 0 ? 1.0f : 0.0f;
    QPrepare(c.ctx, {.q = q.tensor(), .kv = kv.tensor(), .kv_norm = ones.tensor(), .index_q = iq.tensor(), .cos_sin = cs.tensor(),
                     .norm_eps = 1e-6f, .cache = cache.View(0), .append = true});
    for (int64_t h = 0; h < t * n; ++h) {
      double square = 0;
      for (int64_t i = 0; i < dh; ++i) square += static_cast<double>(q0[static_cast<size_t>(h * dh + i)]) * q0[static_cast<size_t>(h * dh + i)];
      const double scale = 1 / std::sqrt(square / static_cast<double>(dh) + 1e-6);
      for (int64_t i = 0; i < dh; ++i) ASSERT_NEAR(q[h * dh + i], q0[static_cast<size_t>(h * dh + i)] * scale, 1e-5) << c.name;
    }
    for (int64_t h = 0; h < t * ni; ++h) {
      std::vector<float> want(iq0.begin() + h * di, iq0.begin() + (h + 1) * di);
      Hadamard(want.data(), di);
      RoundRow(IndexKeyFormat(IndexDtype::kFp4, di), want.data());
      EXPECT_TRUE(BitEqual(iq.span().subspan(static_cast<size_t>(h * di), static_cast<size_t>(di)), want)) << c.name;
    }
    for (size_t s = 0; s < 2; ++s) {  // the ring holds what kv now holds
      const SequenceView& seq = cache.sequences()[s];
      std::vector<float> row(static_cast<size_t>(dh));
      cache.View(0).window_rows(seq).Read(seq.start % spec.window, row.data());
      EXPECT_TRUE(BitEqual(row, kv.row(seq.begin))) << c.name;
    }
  }
}

TEST(QPrepare, EveryPartMayBeLeftOut) {
  Random random(2);
  const std::vector<float> before = random.Normals(2 * 3 * 8);
  GuardBuffer<float> q({2, 3, 8}, before), both({2, 3, 8}, before), index({2, 1, 32}, random.Normals(64)), cs({2, 2, 2}, random.Normals(8));
  QPrepare({}, {.q = q.tensor(), .cos_sin = cs.tensor(), .norm_eps = 1e-6f});
  QPrepare({}, {.q = both.tensor(), .index_q = index.tensor(), .cos_sin = cs.tensor(), .norm_eps = 1e-6f});
  EXPECT_TRUE(BitEqual(q.span(), both.span()));
}

TEST(QPrepareDeathTest, RefusesAnotherNumberOfTokens) {
  GuardBuffer<float> q({3, 1, 8}), cs({2, 2, 2});
  EXPECT_DEATH(QPrepare({}, {.q = q.tensor(), .cos_sin = cs.tensor()}), "q_prepare");
}

}  // namespace
}  // namespace dsv4
