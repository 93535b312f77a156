#include "ops/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "ops/sparse_attention/rows.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "tensor/quant_tensor.h"

DSV4_DECLARE_KERNELS(SparseAttentionCpu, SparseAttentionArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<SparseAttentionArgs>> kSparseAttentionKernels = DSV4_KERNELS(SparseAttentionCpu);

struct AttentionStep {
  const char* name;
  KvSpec spec;
  std::vector<SequenceStep> sequences;
  int64_t heads;
  int64_t picks;  // 0: every visible compressed row
};

std::vector<AttentionStep> AttentionSteps() {
  KvSpec odd = TinyKvSpec({4}, KvDtype::kBf16);
  odd.head_dim = 44;
  odd.window = 37;
  const SequenceStep empty{.cached = 10, .tokens = 0};
  return {
      {"first token", TinyKvSpec({0}), {{0, 1}}, 1, 0},
      {"window edges", TinyKvSpec({0}), {{126, 4}, {0, 130}, empty, {255, 2}}, 5, 0},
      {"ring only", TinyKvSpec({0}, KvDtype::kF32), {{300, 1}, {128, 1}, {127, 1}}, 8, 0},
      {"all compressed rows", TinyKvSpec({128}), {{1000, 1}, {0, 129}, {127, 1}}, 3, 0},
      {"ratio 4, all", TinyKvSpec({4}), {{2, 7}, {700, 3}}, 7, 0},
      {"picks", TinyKvSpec({4}), {{900, 5}, {3, 2}, {0, 40}, {64, 1}}, 6, 20},
      {"more picks than rows", TinyKvSpec({4}), {{5, 3}}, 2, 50},
      {"odd head size", odd, {{60, 9}, {0, 50}}, 5, 8},
      {"released sizes", FullKvSpec({4}), {{2060, 2}}, 9, 64},
  };
}

// q, kv, sink and picks for a step over `cache`.
struct Inputs {
  Inputs(Random& random, const AttentionStep& step, const CacheFixture& cache)
      : q({cache.num_tokens(), step.heads, step.spec.head_dim},
          random.Normals(cache.num_tokens() * step.heads * step.spec.head_dim)),
        kv({cache.num_tokens(), step.spec.head_dim}, random.Normals(cache.num_tokens() * step.spec.head_dim)),
        sink({step.heads}, random.Normals(step.heads, 3)),
        picks({cache.num_tokens(), std::max<int64_t>(step.picks, 1)}) {
    for (int64_t t = 0; t < cache.num_tokens() && step.picks > 0; ++t) {
      const int64_t visible = (cache.positions()[static_cast<size_t>(t)] + 1) / 4;
      std::vector<int32_t> chosen = random.Permutation(visible);
      chosen.resize(static_cast<size_t>(std::min(visible, step.picks)));
      std::sort(chosen.begin(), chosen.end());
      chosen.resize(static_cast<size_t>(step.picks), -1);
      std::copy(chosen.begin(), chosen.end(), picks.row(t).begin());
    }
  }
  SparseAttentionArgs Args(const AttentionStep& step, const CacheView& view, Tensor out) {
    return {.q = q.tensor(),
            .kv = kv.tensor(),
            .sink = sink.tensor(),
            .topk_idxs = step.picks > 0 ? picks.tensor() : Tensor{},
            .cache = view,
            .out = out};
  }

  GuardBuffer<float> q, kv, sink;
  GuardBuffer<int32_t> picks;
};

// A score s_i = scale (q . row_i) is off by at most gamma_(Dh/8 + 6) scale sum |q| |row|, and the argument of exp by two
// more roundings of |s| + |max|; exp is good to 2 ulp. With d the largest of these, a weight is off by a factor within
// 1 +- 1.1 d, the quotient of two such sums by 2.2 d; their additions and rescalings add gamma_(2 rows + 12). Hence
//   |out - exact| <= (2.2 d + gamma) sum_i p_i |row_i| / den.
std::vector<double> Bounds(const SparseAttentionArgs& a) {
  const int64_t heads = a.q.dim(1), dh = a.q.dim(2);
  const double scale = 1 / std::sqrt(static_cast<double>(dh));
  std::vector<double> bounds;
  std::vector<float> buffer(static_cast<size_t>(dh));
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const AttendedRows rows(a, t);
    for (int64_t n = 0; n < heads; ++n) {
      const float* q = a.q.f32() + (t * heads + n) * dh;
      const double sink = a.sink.f32()[n];
      double largest = sink, relative = 0;
      std::vector<double> s;
      for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = rows.Get(i, buffer.data());
        double dot = 0, magnitude = 0;
        for (int64_t c = 0; c < dh; ++c) {
          dot += static_cast<double>(q[c]) * row[c];
          magnitude += std::fabs(static_cast<double>(q[c]) * row[c]);
        }
        s.push_back(dot * scale);
        largest = std::max(largest, s.back());
        relative = std::max(relative,
                            Gamma(CeilDiv(dh, 8) + 6) * scale * magnitude + Gamma(1) * std::fabs(s.back()));
      }
      relative += Gamma(4) * (1 + std::fabs(largest)) + Gamma(1) * std::fabs(sink);
      relative += Gamma(1) * (largest - *std::min_element(s.begin(), s.end()));
      std::vector<double> sum(static_cast<size_t>(dh));
      double den = std::exp(sink - largest);
      for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = rows.Get(i, buffer.data());
        const double p = std::exp(s[static_cast<size_t>(i)] - largest);
        den += p;
        for (int64_t c = 0; c < dh; ++c) sum[static_cast<size_t>(c)] += p * std::fabs(row[c]);
      }
      for (const double v : sum)
        bounds.push_back((2.2 * relative + Gamma(2 * rows.size() + 12)) * v / den + 1e-37);
    }
  }
  return bounds;
}

TEST(SparseAttention, MatchesReference) {
  Random random(1);
  for (const AttentionStep& step : AttentionSteps()) {
    SCOPED_TRACE(step.name);
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);  // every slot that no token sees stays NaN
    Inputs in(random, step, cache);
    const Shape shape = in.q.tensor().shape;
    GuardBuffer<float> want(shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention(Reference(), args);
    for (const float v : want.span()) ASSERT_TRUE(std::isfinite(v));
    ForEachKernel(kSparseAttentionKernels, [&](const auto run) {
      GuardBuffer<float> out(shape);
      run(TwoThreads(), in.Args(step, cache.View(0), out.tensor()));
      EXPECT_TRUE(WithinBounds(out.span(), want.span(), Bounds(args)));
      for (const ExecContext& ctx : ThreadCounts()) {
        GuardBuffer<float> again(shape);
        run(ctx, in.Args(step, cache.View(0), again.tensor()));
        EXPECT_TRUE(BitEqual(again.span(), out.span()));
      }
    });
  }
}

// Tokens of several sequences in one step, and each token alone: its own rows of this step then lie in the ring, as the
// window append of an F32 cache leaves them.
TEST(SparseAttention, ATokenAloneGivesTheSameBits) {
  Random random(2);
  for (const int64_t ratio : {0, 4, 128}) {
    const AttentionStep step{
        "", TinyKvSpec({ratio}, KvDtype::kF32), {{.cached = 250, .tokens = 140}}, 6, ratio == 4 ? 17 : 0};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    Inputs in(random, step, cache);
    const int64_t t = cache.num_tokens(), heads = step.heads, dh = step.spec.head_dim;
    ForEachKernel(kSparseAttentionKernels, [&](const auto run) {
      GuardBuffer<float> all(in.q.tensor().shape);
      run(TwoThreads(), in.Args(step, cache.View(0), all.tensor()));
      CacheFixture copy(step.spec, step.sequences);
      const SequenceView& from = cache.sequences()[0];
      const SequenceView& to = copy.sequences()[0];
      std::memcpy(to.fixed, from.fixed, static_cast<size_t>(cache.layout().fixed_bytes));
      for (int64_t page = 0; ratio != 0 && page < CeilDiv(int64_t{390}, cache.layout().page_tokens); ++page) {
        std::memcpy(to.pages[page], from.pages[page], static_cast<size_t>(cache.layout().page_bytes));
      }
      for (int64_t i = 0; i < t; ++i) {
        SequenceView seq = to;
        seq.start += i;
        seq.begin = 0;
        seq.end = 1;
        const int32_t sequence_of = 0;
        CacheView one = copy.View(0);
        one.sequences = &seq;
        one.sequence_of = &sequence_of;
        one.positions += i;
        one.num_tokens = 1;
        GuardBuffer<float> out({1, heads, dh});
        run(TwoThreads(),
            {.q = {in.q.row(i).data(), DType::kF32, {1, heads, dh}},
             .kv = {in.kv.row(i).data(), DType::kF32, {1, dh}},
             .sink = in.sink.tensor(),
             .topk_idxs = step.picks > 0 ? Tensor{in.picks.row(i).data(), DType::kI32, {1, step.picks}}
                                         : Tensor{},
             .cache = one,
             .out = out.tensor()});
        EXPECT_TRUE(BitEqual(out.span(), all.row(i))) << "ratio " << ratio << " token " << i;
        copy.View(0).window_rows(to).Write((250 + i) % step.spec.window, in.kv.row(i).data());
      }
    });
  }
}

// The sink is a logit as it is: with q = 0 every score is 0, and n rows of value v give n v / (n + exp(sink)).
TEST(SparseAttention, TheSinkIsNotScaled) {
  Random random(3);
  const AttentionStep step{"", TinyKvSpec({0}), {{0, 40}}, 3, 0};
  CacheFixture cache(step.spec, step.sequences);
  Inputs in(random, step, cache);
  std::fill(in.q.span().begin(), in.q.span().end(), 0.0f);
  std::fill(in.kv.span().begin(), in.kv.span().end(), 2.0f);
  in.sink[0] = 4.0f;
  in.sink[1] = -std::numeric_limits<float>::infinity();
  in.sink[2] = 200.0f;
  ForEachKernel(kSparseAttentionKernels, [&](const auto run) {
    GuardBuffer<float> out(in.q.tensor().shape);
    run({}, in.Args(step, cache.View(0), out.tensor()));
    const int64_t dh = step.spec.head_dim;
    for (int64_t t = 0; t < 40; ++t) {
      const double n = static_cast<double>(t + 1);
      EXPECT_NEAR(out[(t * 3 + 0) * dh], 2 * n / (n + std::exp(4.0)), 1e-5);
      EXPECT_NEAR(out[(t * 3 + 1) * dh], 2.0, 1e-6);
      EXPECT_EQ(out[(t * 3 + 2) * dh], 0.0f);
    }
  });
}

TEST(SparseAttention, LargeScoresDoNotOverflow) {
  Random random(4);
  const AttentionStep step{"", TinyKvSpec({0}), {{0, 70}}, 2, 0};
  CacheFixture cache(step.spec, step.sequences);
  Inputs in(random, step, cache);
  for (float& v : in.q.span()) v *= 1000;
  GuardBuffer<float> want(in.q.tensor().shape);
  const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
  SparseAttention(Reference(), args);
  ForEachKernel(kSparseAttentionKernels, [&](const auto run) {
    GuardBuffer<float> out(in.q.tensor().shape);
    run({}, in.Args(step, cache.View(0), out.tensor()));
    EXPECT_TRUE(WithinBounds(out.span(), want.span(), Bounds(args)));
  });
}

TEST(SparseAttention, NanStaysInItsToken) {
  Random random(5);
  const AttentionStep step{"", TinyKvSpec({0}), {{0, 6}}, 2, 0};
  CacheFixture cache(step.spec, step.sequences);
  Inputs in(random, step, cache);
  in.q[(2 * 2 + 1) * step.spec.head_dim + 5] = std::numeric_limits<float>::quiet_NaN();
  ForEachKernel(kSparseAttentionKernels, [&](const auto run) {
    GuardBuffer<float> out(in.q.tensor().shape);
    run({}, in.Args(step, cache.View(0), out.tensor()));
    for (int64_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), i / step.spec.head_dim == 5) << i;
    }
  });
}

}  // namespace
}  // namespace dsv4::test
