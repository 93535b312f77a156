#include "ops/q_prepare/q_prepare.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ops/round_index_query/hadamard.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void QPrepareOnGpu(const ExecContext&, const QPrepareArgs& a) {
  Mirror gpu;
  QPrepareArgs b = a;
  b.q = gpu.Out(a.q), b.kv = gpu.Out(a.kv), b.index_q = gpu.Out(a.index_q);
  b.kv_norm = gpu.In(a.kv_norm), b.cos_sin = gpu.In(a.cos_sin);
  if (a.cache.layer != nullptr) b.cache = gpu.Cache(a.cache);
  QPrepare(gpu.ctx(), b);
  gpu.Finish();
}

// Angle 0 omits the rotation, a weight of ones the scaling; the result is then easy to state.
DSV4_DEVICE_TEST(QPrepare, NormsRoundsAndAppends) {
  Random random(1);
  const KvSpec spec = TinyKvSpec({4});
  for (const auto& c : Places(on, QPrepare, QPrepareOnGpu)) {
    CacheFixture cache(spec, {{5, 1}, {130, 1}, {7, 0}});
    const int64_t t = 2, n = 3, ni = 2, dh = spec.head_dim, di = spec.index_head_dim;
    GuardBuffer<float> q({t, n, dh}, random.Normals(t * n * dh, 4)), kv({t, dh}, random.Normals(t * dh)),
        iq({t, ni, di}, random.Normals(t * ni * di));
    const std::vector<float> q0 = q.values(), iq0 = iq.values();
    GuardBuffer<float> ones({dh}, std::vector<float>(static_cast<size_t>(dh), 1.0f)), cs({t, spec.rope_dim / 2, 2});
    for (int64_t i = 0; i < cs.size(); ++i) cs[i] = i % 2 == 0 ? 1.0f : 0.0f;
    c.run({.q = q.tensor(),
           .kv = kv.tensor(),
           .kv_norm = ones.tensor(),
           .index_q = iq.tensor(),
           .cos_sin = cs.tensor(),
           .norm_eps = 1e-6f,
           .cache = cache.View(0),
           .append = true});
    for (int64_t h = 0; h < t * n; ++h) {
      double square = 0;
      for (int64_t i = 0; i < dh; ++i)
        square += static_cast<double>(q0[static_cast<size_t>(h * dh + i)]) * q0[static_cast<size_t>(h * dh + i)];
      const double scale = 1 / std::sqrt(square / static_cast<double>(dh) + 1e-6);
      for (int64_t i = 0; i < dh; ++i)
        ASSERT_NEAR(q[h * dh + i], q0[static_cast<size_t>(h * dh + i)] * scale, 1e-5) << c.name;
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
      cache.View(0).window_rows(seq).Read(seq.start % cache.layout().layers[0].window_slots, row.data());
      EXPECT_TRUE(BitEqual(row, kv.row(seq.begin))) << c.name;
    }
  }
}

DSV4_DEVICE_TEST(QPrepare, EveryPartMayBeLeftOut) {
  Random random(2);
  const std::vector<float> before = random.Normals(2 * 3 * 8);
  GuardBuffer<float> index({2, 1, 32}, random.Normals(64)), cs({2, 2, 2}, random.Normals(8));
  for (const auto& c : Places(on, QPrepare, QPrepareOnGpu)) {
    GuardBuffer<float> q({2, 3, 8}, before), both({2, 3, 8}, before);
    c.run({.q = q.tensor(), .cos_sin = cs.tensor(), .norm_eps = 1e-6f});
    c.run({.q = both.tensor(), .index_q = index.tensor(), .cos_sin = cs.tensor(), .norm_eps = 1e-6f});
    EXPECT_TRUE(BitEqual(q.span(), both.span())) << c.name;
  }
}

// A row of kv may round to the neighbouring code (FP8: 2^-3 of it, the smallest 2^-9 of the block's largest) if it is
// within the norm's error of a tie: below one channel in 1,000.
void ExpectRoundedRows(GuardBuffer<float>& kv, GuardBuffer<float>& want, KvDtype dtype) {
  const double step = dtype == KvDtype::kFp8 ? 0.126 : dtype == KvDtype::kBf16 ? 0.0079 : 1e-5;
  int64_t flips = 0;
  for (int64_t i = 0; i < kv.size(); ++i) {
    flips += std::fabs(kv[i] - want[i]) > 1e-5 * std::fabs(want[i]) + 1e-5;
    ASSERT_NEAR(kv[i], want[i], step * std::fabs(want[i]) + 0.02) << i;
  }
  EXPECT_LE(flips, kv.size() / 1000 + 1);
}

void ExpectTheRingHolds(const CacheFixture& cache, GuardBuffer<float>& kv) {
  const CacheView view = cache.View(0);
  for (const SequenceView& seq : cache.sequences()) {
    for (int64_t t = seq.begin; t < seq.end; ++t) {
      std::vector<float> row(static_cast<size_t>(view.layer->window_row.dim));
      view.window_rows(seq).Read((seq.start + t - seq.begin) % view.layer->window_slots, row.data());
      EXPECT_TRUE(BitEqual(row, kv.row(t))) << t;
    }
  }
}

// Queries: the norm's sum (Dh / 32 + 5 additions), its root and quotient, then RoPE's two products and a sum.
// Index queries have no sum: bit-equal.
void ExpectTheOps(On on, Random& random, bool full, KvDtype dtype, IndexDtype index, bool append) {
  const KvSpec spec = full ? FullKvSpec({4}, dtype, index) : TinyKvSpec({4}, dtype, index);
  const std::vector<SequenceStep> steps = append ? std::vector<SequenceStep>{{0, 1}, {130, 4}, {7, 0}, {1000, 8}}
                                                 : std::vector<SequenceStep>{{0, 9}, {130, 1}, {7, 3}};
  CacheFixture want_cache(spec, steps);
  const int64_t t = want_cache.num_tokens(), n = full ? 64 : 3, ni = full ? 64 : 5, dh = spec.head_dim,
                di = spec.index_head_dim;
  const int64_t pairs = spec.rope_dim / 2;
  const std::vector<float> q0 = random.Normals(t * n * dh, 3), kv0 = random.Normals(t * dh),
                           iq0 = random.Normals(t * ni * di);
  GuardBuffer<float> want_q({t, n, dh}, q0), want_kv({t, dh}, kv0), want_iq({t, ni, di}, iq0);
  GuardBuffer<float> norm({dh}, random.Normals(dh));
  std::vector<float> angles;
  for (int64_t i = 0; i < t * pairs; ++i) {
    const double angle = random.Uniform(-100, 100);
    angles.push_back(static_cast<float>(std::cos(angle)));
    angles.push_back(static_cast<float>(std::sin(angle)));
  }
  GuardBuffer<float> cs({t, pairs, 2}, angles);
  QPrepareArgs args = {.q = want_q.tensor(),
                       .kv = want_kv.tensor(),
                       .kv_norm = norm.tensor(),
                       .index_q = want_iq.tensor(),
                       .cos_sin = cs.tensor(),
                       .norm_eps = 1e-6f,
                       .index_dtype = index,
                       .cache = want_cache.View(0),
                       .append = append};
  QPrepare({.reference_ops = true}, args);
  for (const auto& at : Places(on, QPrepare, QPrepareOnGpu)) {
    SCOPED_TRACE(at.name);
    CacheFixture cache(spec, steps);
    GuardBuffer<float> q({t, n, dh}, q0), kv({t, dh}, kv0), iq({t, ni, di}, iq0);
    args.q = q.tensor(), args.kv = kv.tensor(), args.index_q = iq.tensor(), args.cache = cache.View(0);
    at.run(args);
    EXPECT_TRUE(BitEqual(iq.span(), want_iq.span()));
    EXPECT_TRUE(Near(q.span(), want_q.span(), 4 * Gamma(CeilDiv(dh, 32) + 16), Gamma(CeilDiv(dh, 32) + 16)));
    ExpectRoundedRows(kv, want_kv, dtype);
    if (append) ExpectTheRingHolds(cache, kv);
  }
}

DSV4_DEVICE_TEST(QPrepare, MatchesTheOpsItStandsFor) {
  Random random(1);
  for (const bool full : {false, true}) {
    for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
      for (const IndexDtype index : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
        for (const bool append : {false, true}) ExpectTheOps(on, random, full, dtype, index, append);
      }
    }
  }
}

// Little work, so that compute-sanitizer is fast.
DSV4_DEVICE_TEST(QPrepare, MatchesTheOpsItStandsForShort) {
  Random random(4);
  ExpectTheOps(on, random, true, KvDtype::kFp8, IndexDtype::kFp4, true);
  ExpectTheOps(on, random, false, KvDtype::kF32, IndexDtype::kF32, false);
}

// Each part alone gives the same bits as together with the others; a row's bits do not depend on T.
DSV4_DEVICE_TEST(QPrepare, PartsAndRowsAreIndependent) {
  Random random(2);
  const KvSpec spec = FullKvSpec({4});
  CacheFixture cache(spec, {{0, 21}});
  const int64_t t = 21, n = 16, ni = 8, dh = 512, di = 128;
  const std::vector<float> q0 = random.Normals(t * n * dh), kv0 = random.Normals(t * dh),
                           iq0 = random.Normals(t * ni * di);
  GuardBuffer<float> norm({dh}, random.Normals(dh)), cs({t, 32, 2}, random.Normals(t * 64));
  for (const auto& at : Places(on, QPrepare, QPrepareOnGpu)) {
    SCOPED_TRACE(at.name);
    GuardBuffer<float> q({t, n, dh}, q0), kv({t, dh}, kv0), iq({t, ni, di}, iq0);
    at.run({.q = q.tensor(),
            .kv = kv.tensor(),
            .kv_norm = norm.tensor(),
            .index_q = iq.tensor(),
            .cos_sin = cs.tensor(),
            .norm_eps = 1e-6f,
            .cache = cache.View(0)});
    for (const int64_t r : {0, 7, 20}) {
      const auto row = [&](const std::vector<float>& x, int64_t width) {
        return std::vector<float>(x.begin() + r * width, x.begin() + (r + 1) * width);
      };
      GuardBuffer<float> q1({1, n, dh}, row(q0, n * dh)), kv1({1, dh}, row(kv0, dh)),
          iq1({1, ni, di}, row(iq0, ni * di));
      const Tensor cs1{cs.row(r).data(), DType::kF32, {1, 32, 2}};
      at.run({.q = q1.tensor(), .cos_sin = cs1, .norm_eps = 1e-6f});
      at.run({.index_q = iq1.tensor(), .cos_sin = cs1});
      at.run({.kv = kv1.tensor(), .kv_norm = norm.tensor(), .cos_sin = cs1, .norm_eps = 1e-6f, .cache = cache.View(0)});
      EXPECT_TRUE(BitEqual(q1.span(), q.row(r)));
      EXPECT_TRUE(BitEqual(kv1.span(), kv.row(r)));
      EXPECT_TRUE(BitEqual(iq1.span(), iq.row(r)));
    }
  }
}

// A GPU has a separate kernel for the index heads of long prompts: the bits are the same as for one row.
void ExpectRowsAlone(On on, Random& random, IndexDtype dtype, int64_t pairs, const std::vector<int64_t>& rows) {
  const int64_t t = 71, ni = 61, di = 128;  // 4,331 heads: not a multiple of a block's
  GuardBuffer<float> iq({t, ni, di}, random.Normals(t * ni * di)), cs({t, pairs, 2}, random.Normals(t * pairs * 2));
  iq[5] = 0;
  std::fill_n(iq.row(3).begin(), ni * di, 0.0f);
  iq[ni * di + 130] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> iq0 = iq.values();
  for (const auto& at : Places(on, QPrepare, QPrepareOnGpu)) {
    SCOPED_TRACE(at.name);
    GuardBuffer<float> all({t, ni, di}, iq0);
    at.run({.index_q = all.tensor(), .cos_sin = cs.tensor(), .index_dtype = dtype});
    for (const int64_t r : rows) {
      GuardBuffer<float> one({1, ni, di},
                             std::vector<float>(iq0.begin() + r * ni * di, iq0.begin() + (r + 1) * ni * di));
      at.run(
          {.index_q = one.tensor(), .cos_sin = {cs.row(r).data(), DType::kF32, {1, pairs, 2}}, .index_dtype = dtype});
      for (int64_t i = 0; i < ni * di; ++i) {
        const float got = all.row(r)[static_cast<size_t>(i)];
        ASSERT_TRUE(std::isnan(got) ? std::isnan(one[i]) : got == one[i])
            << "row " << r << " channel " << i << ": " << got << ", alone " << one[i];
      }
    }
  }
}

DSV4_DEVICE_TEST(QPrepare, ManyIndexHeads) {
  Random random(3);
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
    for (const int64_t pairs : {32, 64, 2}) ExpectRowsAlone(on, random, dtype, pairs, {0, 1, 3, 40, 70});
  }
}

DSV4_DEVICE_TEST(QPrepare, ManyIndexHeadsShort) {
  Random random(5);
  ExpectRowsAlone(on, random, IndexDtype::kFp4, 32, {1});
}

TEST(QPrepareDeathTest, RefusesAnotherNumberOfTokens) {
  GuardBuffer<float> q({3, 1, 8}), cs({2, 2, 2});
  EXPECT_DEATH(QPrepare({}, {.q = q.tensor(), .cos_sin = cs.tensor()}), "q_prepare");
}

}  // namespace
}  // namespace dsv4::test
