#include "ops/q_prepare/q_prepare.h"

#include <cmath>
#include <limits>

#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& args);
}

namespace dsv4::test {
namespace {

// Queries: the norm's sum (Dh / 32 + 5 additions), its root and quotient, then RoPE's two products and a sum.
// Index queries have no sum: bit-equal. A row of kv may round to the neighbouring code (FP8: 2^-3 of it, the smallest
// 2^-9 of the block's largest) where it lies within the norm's error of a tie: below one channel in 1,000.
void ExpectTheOps(Random& random, bool full, KvDtype dtype, IndexDtype index, bool append) {
  const KvSpec spec = full ? FullKvSpec({4}, dtype, index) : TinyKvSpec({4}, dtype, index);
  const std::vector<SequenceStep> steps = append ? std::vector<SequenceStep>{{0, 1}, {130, 1}, {7, 0}, {1000, 1}}
                                                 : std::vector<SequenceStep>{{0, 9}, {130, 1}, {7, 3}};
  CacheFixture want_cache(spec, steps), got_cache(spec, steps);
  const int64_t t = want_cache.num_tokens(), n = full ? 64 : 3, ni = full ? 64 : 5, dh = spec.head_dim, di = spec.index_head_dim;
  const int64_t pairs = spec.rope_dim / 2;
  GuardBuffer<float> q({t, n, dh}, random.Normals(t * n * dh, 3)), want_q({t, n, dh}, q.values());
  GuardBuffer<float> kv({t, dh}, random.Normals(t * dh)), want_kv({t, dh}, kv.values());
  GuardBuffer<float> iq({t, ni, di}, random.Normals(t * ni * di)), want_iq({t, ni, di}, iq.values());
  GuardBuffer<float> norm({dh}, random.Normals(dh));
  std::vector<float> angles;
  for (int64_t i = 0; i < t * pairs; ++i) {
    const double angle = random.Uniform(-100, 100);
    angles.push_back(static_cast<float>(std::cos(angle)));
    angles.push_back(static_cast<float>(std::sin(angle)));
  }
  GuardBuffer<float> cs({t, pairs, 2}, angles);
  QPrepareArgs args = {.q = want_q.tensor(), .kv = want_kv.tensor(), .kv_norm = norm.tensor(), .index_q = want_iq.tensor(),
                       .cos_sin = cs.tensor(), .norm_eps = 1e-6f, .index_dtype = index, .cache = want_cache.View(0), .append = append};
  QPrepare({.reference_ops = true}, args);
  Mirror gpu;
  args.q = gpu.Out(q.tensor()), args.kv = gpu.Out(kv.tensor()), args.index_q = gpu.Out(iq.tensor());
  args.kv_norm = gpu.In(norm.tensor()), args.cos_sin = gpu.In(cs.tensor()), args.cache = gpu.Cache(got_cache.View(0));
  QPrepareCuda(gpu.ctx(), args);
  gpu.Finish();
  EXPECT_TRUE(BitEqual(iq.span(), want_iq.span()));
  EXPECT_TRUE(Near(q.span(), want_q.span(), 4 * Gamma(CeilDiv(dh, 32) + 16), Gamma(CeilDiv(dh, 32) + 16)));
  int64_t flips = 0;
  for (int64_t i = 0; i < kv.size(); ++i) {
    const double step = dtype == KvDtype::kFp8 ? 0.126 : dtype == KvDtype::kBf16 ? 0.0079 : 1e-5;
    flips += std::fabs(kv[i] - want_kv[i]) > 1e-5 * std::fabs(want_kv[i]) + 1e-5;
    ASSERT_NEAR(kv[i], want_kv[i], step * std::fabs(want_kv[i]) + 0.02) << i;
  }
  EXPECT_LE(flips, kv.size() / 1000 + 1);
  if (!append) return;
  // The ring holds what kv now holds.
  for (size_t s = 0; s < steps.size(); ++s) {
    const SequenceView& seq = got_cache.sequences()[s];
    if (seq.begin == seq.end) continue;
    std::vector<float> row(static_cast<size_t>(dh));
    got_cache.View(0).window_rows(seq).Read(seq.start % spec.window, row.data());
    EXPECT_TRUE(BitEqual(row, kv.row(seq.begin))) << s;
  }
}

TEST(CudaQPrepare, MatchesTheOpsItStandsFor) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const bool full : {false, true}) {
    for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
      for (const IndexDtype index : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
        for (const bool append : {false, true}) ExpectTheOps(random, full, dtype, index, append);
      }
    }
  }
}

// Little work, so that compute-sanitizer ends soon.
TEST(CudaQPrepare, MatchesTheOpsItStandsForShort) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  ExpectTheOps(random, true, KvDtype::kFp8, IndexDtype::kFp4, true);
  ExpectTheOps(random, false, KvDtype::kF32, IndexDtype::kF32, false);
}

// Each part alone gives the bits that it has beside the others; a row's bits do not depend on T.
TEST(CudaQPrepare, PartsAndRowsAreIndependent) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const KvSpec spec = FullKvSpec({4});
  CacheFixture cache(spec, {{0, 21}});
  const int64_t t = 21, n = 16, ni = 8, dh = 512, di = 128;
  GuardBuffer<float> q({t, n, dh}, random.Normals(t * n * dh)), kv({t, dh}, random.Normals(t * dh)), iq({t, ni, di}, random.Normals(t * ni * di));
  const std::vector<float> q0 = q.values(), kv0 = kv.values(), iq0 = iq.values();
  GuardBuffer<float> norm({dh}, random.Normals(dh)), cs({t, 32, 2}, random.Normals(t * 64));
  Mirror all;
  QPrepareCuda(all.ctx(), {.q = all.Out(q.tensor()), .kv = all.Out(kv.tensor()), .kv_norm = all.In(norm.tensor()), .index_q = all.Out(iq.tensor()),
                           .cos_sin = all.In(cs.tensor()), .norm_eps = 1e-6f, .cache = all.Cache(cache.View(0))});
  all.Finish();
  for (const int64_t r : {0, 7, 20}) {
    const auto row = [&](const std::vector<float>& x, int64_t width) { return std::vector<float>(x.begin() + r * width, x.begin() + (r + 1) * width); };
    GuardBuffer<float> q1({1, n, dh}, row(q0, n * dh)), kv1({1, dh}, row(kv0, dh)), iq1({1, ni, di}, row(iq0, ni * di));
    const Tensor cs1{cs.row(r).data(), DType::kF32, {1, 32, 2}};
    Mirror gpu;
    QPrepareCuda(gpu.ctx(), {.q = gpu.Out(q1.tensor()), .cos_sin = gpu.In(cs1), .norm_eps = 1e-6f});
    QPrepareCuda(gpu.ctx(), {.index_q = gpu.Out(iq1.tensor()), .cos_sin = gpu.In(cs1)});
    CacheView view = cache.View(0);
    QPrepareCuda(gpu.ctx(), {.kv = gpu.Out(kv1.tensor()), .kv_norm = gpu.In(norm.tensor()), .cos_sin = gpu.In(cs1), .norm_eps = 1e-6f, .cache = gpu.Cache(view)});
    gpu.Finish();
    EXPECT_TRUE(BitEqual(q1.span(), q.row(r)));
    EXPECT_TRUE(BitEqual(kv1.span(), kv.row(r)));
    EXPECT_TRUE(BitEqual(iq1.span(), iq.row(r)));
  }
}

// Long prompts have a kernel of their own for index heads: the bits of a row alone.
void ExpectRowsAlone(Random& random, IndexDtype dtype, int64_t pairs, const std::vector<int64_t>& rows) {
  const int64_t t = 71, ni = 61, di = 128;  // 4,331 heads: not a multiple of a block's
  GuardBuffer<float> iq({t, ni, di}, random.Normals(t * ni * di)), cs({t, pairs, 2}, random.Normals(t * pairs * 2));
  iq[5] = 0;
  std::fill_n(iq.row(3).begin(), ni * di, 0.0f);
  iq[ni * di + 130] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> iq0 = iq.values();
  Mirror all;
  QPrepareCuda(all.ctx(), {.index_q = all.Out(iq.tensor()), .cos_sin = all.In(cs.tensor()), .index_dtype = dtype});
  all.Finish();
  for (const int64_t r : rows) {
    GuardBuffer<float> one({1, ni, di}, std::vector<float>(iq0.begin() + r * ni * di, iq0.begin() + (r + 1) * ni * di));
    const Tensor cs1{cs.row(r).data(), DType::kF32, {1, pairs, 2}};
    Mirror gpu;
    QPrepareCuda(gpu.ctx(), {.index_q = gpu.Out(one.tensor()), .cos_sin = gpu.In(cs1), .index_dtype = dtype});
    gpu.Finish();
    for (int64_t i = 0; i < ni * di; ++i) {
      const float got = iq.row(r)[static_cast<size_t>(i)];
      ASSERT_TRUE(std::isnan(got) ? std::isnan(one[i]) : got == one[i]) << "row " << r << " channel " << i << ": " << got << ", alone " << one[i];
    }
  }
}

TEST(CudaQPrepare, ManyIndexHeads) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
    for (const int64_t pairs : {32, 64, 2}) ExpectRowsAlone(random, dtype, pairs, {0, 1, 3, 40, 70});
  }
}

TEST(CudaQPrepare, ManyIndexHeadsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  ExpectRowsAlone(random, IndexDtype::kFp4, 32, {1});
}

}  // namespace
}  // namespace dsv4::test
