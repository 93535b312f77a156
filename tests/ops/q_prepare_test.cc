#include "ops/q_prepare/q_prepare.h"

#include "ops/kernels.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/round_index_query/round_index_query.h"
#include "ops/round_kv/round_kv.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"

namespace dsv4::test {
namespace {

// Every part equals the ops that it stands for, alone and beside the others.
TEST(QPrepare, EqualsTheOpsItStandsFor) {
  Random random(1);
  const KvSpec spec = TinyKvSpec({4});
  CacheFixture cache(spec, {{0, 3}, {130, 1}});
  const int64_t t = cache.num_tokens(), n = 3, ni = 5, dh = spec.head_dim, di = spec.index_head_dim;
  GuardBuffer<float> norm({dh}, random.Normals(dh)), cs({t, spec.rope_dim / 2, 2}, random.Normals(t * spec.rope_dim));
  GuardBuffer<float> q({t, n, dh}, random.Normals(t * n * dh)), want_q({t, n, dh}, q.values());
  GuardBuffer<float> kv({t, dh}, random.Normals(t * dh)), want_kv({t, dh}, kv.values());
  GuardBuffer<float> iq({t, ni, di}, random.Normals(t * ni * di)), want_iq({t, ni, di}, iq.values());

  const Tensor rows = want_q.tensor().Reshaped({t * n, dh});
  RmsNorm({}, {.x = rows, .y = rows, .eps = 1e-6f});
  Rope({}, {.x = want_q.tensor(), .cos_sin = cs.tensor()});
  RmsNorm({}, {.x = want_kv.tensor(), .weight = norm.tensor(), .y = want_kv.tensor(), .eps = 1e-6f});
  Rope({}, {.x = want_kv.tensor().Reshaped({t, 1, dh}), .cos_sin = cs.tensor()});
  RoundKv({}, {.kv = want_kv.tensor(), .format = cache.View(0).layer->window_row});
  Rope({}, {.x = want_iq.tensor(), .cos_sin = cs.tensor()});
  RoundIndexQuery({}, {.q = want_iq.tensor(), .dtype = IndexDtype::kFp4});

  QPrepareArgs args{.q = q.tensor(), .kv = kv.tensor(), .kv_norm = norm.tensor(), .cos_sin = cs.tensor(),
                    .norm_eps = 1e-6f, .cache = cache.View(0)};
  QPrepare(TwoThreads(), args);
  EXPECT_TRUE(BitEqual(q.span(), want_q.span()));
  EXPECT_TRUE(BitEqual(kv.span(), want_kv.span()));
  args = {.index_q = iq.tensor(), .cos_sin = cs.tensor(), .index_dtype = IndexDtype::kFp4, .cache = cache.View(0)};
  QPrepare(TwoThreads(), args);
  EXPECT_TRUE(BitEqual(iq.span(), want_iq.span()));
}

// `append` leaves in the ring what kv now holds.
TEST(QPrepare, AppendsADecodeStepsRows) {
  Random random(2);
  const KvSpec spec = TinyKvSpec({0});
  CacheFixture cache(spec, {{0, 1}, {130, 1}});
  const int64_t t = cache.num_tokens(), dh = spec.head_dim;
  GuardBuffer<float> norm({dh}, random.Normals(dh)), cs({t, spec.rope_dim / 2, 2}, random.Normals(t * spec.rope_dim));
  GuardBuffer<float> kv({t, dh}, random.Normals(t * dh));
  QPrepare({}, {.kv = kv.tensor(), .kv_norm = norm.tensor(), .cos_sin = cs.tensor(), .norm_eps = 1e-6f,
                .cache = cache.View(0), .append = true});
  for (const SequenceView& seq : cache.sequences()) {
    std::vector<float> row(static_cast<size_t>(dh));
    cache.View(0).window_rows(seq).Read(seq.start % spec.window, row.data());
    EXPECT_TRUE(BitEqual(row, kv.row(seq.begin)));
  }
}

}  // namespace
}  // namespace dsv4::test
