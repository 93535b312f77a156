#include "ops/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/rope/rope.h"
#include "ops/sparse_attention/rows.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4 {
void SparseAttentionCuda(const ExecContext& ctx, const SparseAttentionArgs& args);
}

namespace dsv4::test {
namespace {

struct Step {
  const char* name;
  KvSpec spec;
  std::vector<SequenceStep> sequences;
  int64_t heads;
  int64_t picks;  // 0: every visible compressed row
};

// q, kv (as RoundKv leaves it), sink and picks for a step over `cache`.
struct Inputs {
  Inputs(Random& random, const Step& step, const CacheFixture& cache)
      : t(cache.num_tokens()),
        q({t, step.heads, step.spec.head_dim}, random.Normals(t * step.heads * step.spec.head_dim)),
        kv({t, step.spec.head_dim}, random.Normals(t * step.spec.head_dim)),
        sink({step.heads}, random.Normals(step.heads, 3)),
        picks({t, std::max<int64_t>(step.picks, 1)}),
        cos_sin({t, step.spec.rope_dim / 2, 2}) {
    for (int64_t i = 0; i < cos_sin.size(); i += 2) {
      const double angle = random.Uniform(-10, 10);
      cos_sin[i] = static_cast<float>(std::cos(angle));
      cos_sin[i + 1] = static_cast<float>(std::sin(angle));
    }
    const RowFormat& format = cache.layout().layers[0].window_row;
    for (int64_t i = 0; i < t; ++i) RoundRow(format, kv.row(i).data());
    for (int64_t i = 0; i < t && step.picks > 0; ++i) {
      const int64_t visible = (cache.positions()[static_cast<size_t>(i)] + 1) / 4;
      std::vector<int32_t> chosen = random.Permutation(visible);
      chosen.resize(static_cast<size_t>(std::min(visible, step.picks)));
      std::sort(chosen.begin(), chosen.end());
      if (i % 5 == 4 && chosen.size() > 3) chosen.resize(chosen.size() - 3);  // the list may end early
      chosen.resize(static_cast<size_t>(step.picks), -1);
      std::copy(chosen.begin(), chosen.end(), picks.row(i).begin());
    }
  }
  SparseAttentionArgs Args(const Step& step, const CacheView& view, Tensor out) {
    return {.q = q.tensor(), .kv = kv.tensor(), .sink = sink.tensor(),
            .topk_idxs = step.picks > 0 ? picks.tensor() : Tensor{}, .cache = view, .out = out};
  }
  void Run(const Step& step, const CacheView& view, GuardBuffer<float>& out, bool f32_inputs, Regime regime = Regime::kDecode,
           bool rotate_back = false, int64_t scratch_bytes = -1) {
    Mirror gpu;
    if (scratch_bytes >= 0) gpu.ctx().scratch.bytes = scratch_bytes;
    gpu.ctx().f32_inputs = f32_inputs;
    gpu.ctx().regime = regime;
    const SparseAttentionArgs a = Args(step, view, out.tensor());
    SparseAttentionCuda(gpu.ctx(), {.q = gpu.In(a.q), .kv = gpu.In(a.kv), .sink = gpu.In(a.sink), .topk_idxs = gpu.In(a.topk_idxs),
                                    .cache = gpu.Cache(view), .out = gpu.Out(a.out),
                                    .cos_sin = rotate_back ? gpu.In(cos_sin.tensor()) : Tensor{}});
    gpu.Finish();
  }

  int64_t t;
  GuardBuffer<float> q, kv, sink;
  GuardBuffer<int32_t> picks;
  GuardBuffer<float> cos_sin;
};

// A score s_i = scale (q . row_i) is off by at most gamma_(Dh + 6) scale sum |q| |row| in float32. With FP16 operands q is
// off by 2^-12 of itself or, below 2^-14, by 2^-25, and rows (FP8 or BF16 values, at most 8 significant bits) by at most
// 2^-25. The argument of exp is off by two more roundings of |s| + |max|; exp is good to 2 ulp. With d the largest of
// these, a weight is off by a factor within 1 +- 1.1 d, the quotient of two such sums by 2.2 d; their additions and
// rescalings add gamma_(2 rows + 12). Weights in FP16 (those of the numerator only) add 2^-12 or, for those below 2^-14,
// 2^-25 where the largest of a tile or the first tile is 2^7 or more: 2^-32 of it. Hence
//   |out - exact| <= (2.2 d + gamma + 2^-12) sum_i p_i |row_i| / den + 2^-32 sum_i |row_i| / den + 2^-25.
std::vector<double> Bounds(const SparseAttentionArgs& a, bool f32) {
  const int64_t heads = a.q.dim(1), dh = a.q.dim(2);
  const double scale = 1 / std::sqrt(static_cast<double>(dh)), f16 = f32 ? 0 : 0x1p-12, tiny = f32 ? 0 : 0x1p-25;
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
        double dot = 0, square = 0, magnitude = 0, plain = 0;
        for (int64_t c = 0; c < dh; ++c) {
          const double product = static_cast<double>(q[c]) * row[c];
          dot += product;
          magnitude += std::fabs(product);
          square += product * product;
          plain += std::fabs(q[c]) + std::fabs(row[c]);
        }
        s.push_back(dot * scale);
        largest = std::max(largest, s.back());
        // Roundings of q are independent: 6 standard deviations instead of the worst case, which would say nothing.
        relative = std::max(relative, Gamma(dh + 6) * scale * magnitude + f16 * scale * 6 * std::sqrt(square) + tiny * scale * plain + Gamma(1) * std::fabs(s.back()));
      }
      relative += Gamma(4) * (1 + std::fabs(largest)) + Gamma(1) * std::fabs(sink);
      relative += Gamma(1) * (largest - *std::min_element(s.begin(), s.end()));
      std::vector<double> sum(static_cast<size_t>(dh)), all(static_cast<size_t>(dh));
      double den = std::exp(sink - largest);
      for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = rows.Get(i, buffer.data());
        const double p = std::exp(s[static_cast<size_t>(i)] - largest);
        den += p;
        for (int64_t c = 0; c < dh; ++c) {
          sum[static_cast<size_t>(c)] += p * std::fabs(row[c]);
          all[static_cast<size_t>(c)] += std::fabs(row[c]);
        }
      }
      for (size_t c = 0; c < sum.size(); ++c) {
        bounds.push_back(((2.2 * relative + f16 + Gamma(4 * rows.size() + 40)) * sum[c] + 0x1p-7 * tiny * all[c]) / den + tiny + 1e-37);
      }
    }
  }
  return bounds;
}

std::vector<Step> Steps() {
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
      {"released sizes, decode", FullKvSpec({4}), {{2060, 1}, {0, 1}, {3, 1}, {130, 1}, {2800, 1}}, 64, 512},
      {"released sizes, 128 heads", FullKvSpec({4}), {{2060, 1}, {4200, 1}}, 128, 1024},
      {"released sizes, few heads", FullKvSpec({4}, KvDtype::kBf16), {{2060, 1}, {77, 1}}, 9, 64},
      {"released sizes, ratio 128", FullKvSpec({128}), {{20000, 1}, {127, 1}, {128, 1}, {126, 1}}, 16, 0},
      {"released sizes, window", FullKvSpec({0}), {{500, 1}, {0, 1}, {64, 1}}, 32, 0},
      {"released sizes, prefill", FullKvSpec({4}), {{1030, 4}, {0, 20}, empty, {255, 2}}, 64, 100},
      {"released sizes, prefill, ratio 128", FullKvSpec({128}), {{3000, 5}, {120, 14}}, 64, 0},
      {"released sizes, long prefill", FullKvSpec({4}), {{900, 30}, {0, 50}, empty, {255, 2}}, 64, 100},
      {"released sizes, long prefill, ratio 128", FullKvSpec({128}), {{3000, 30}, {120, 40}}, 64, 0},
      {"released sizes, long prefill, 128 heads, bf16", FullKvSpec({4}, KvDtype::kBf16), {{1030, 67}}, 128, 70},
      {"released sizes, prefill, 128 heads, bf16", FullKvSpec({4}, KvDtype::kBf16), {{1030, 9}}, 128, 128},
  };
}

TEST(CudaSparseAttention, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const Step& step : Steps()) {
    SCOPED_TRACE(step.name);
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);  // every slot that no token sees stays NaN
    Inputs in(random, step, cache);
    const Shape shape = in.q.tensor().shape;
    GuardBuffer<float> want(shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention({.reference_ops = true}, args);
    for (const float v : want.span()) ASSERT_TRUE(std::isfinite(v));
    for (const bool f32 : {true, false}) {
      const std::vector<double> bounds = Bounds(args, f32);
      for (const Regime regime : {Regime::kDecode, Regime::kPrompt}) {
        SCOPED_TRACE(StrCat(f32 ? "f32 inputs" : "f16 inputs", ", regime ", static_cast<int>(regime)));
        GuardBuffer<float> out(shape), again(shape);
        in.Run(step, cache.View(0), out, f32, regime);
        EXPECT_TRUE(WithinBounds(out.span(), want.span(), bounds));
        in.Run(step, cache.View(0), again, f32, regime);
        EXPECT_TRUE(BitEqual(again.span(), out.span()));
        // Rotating back is what Rope does afterwards, bit for bit.
        in.Run(step, cache.View(0), again, f32, regime, true);
        Rope({.reference_ops = true}, {.x = out.tensor(), .cos_sin = in.cos_sin.tensor(), .inverse = true});
        EXPECT_TRUE(BitEqual(again.span(), out.span()));
      }
    }
  }
}

// A decode step of several sequences, and each sequence alone.
TEST(CudaSparseAttention, ASequenceAloneGivesTheSameBits) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const int64_t ratio : {0, 4, 128}) {
    for (const int64_t heads : {16, 64, 128}) {
      for (const size_t batch : {size_t{3}, size_t{17}, size_t{64}}) {
        std::vector<SequenceStep> sequences;
        for (size_t s = 0; s < batch; ++s) sequences.push_back({.cached = random.Index(900), .tokens = 1});
        const Step step{"", FullKvSpec({ratio}), sequences, heads, ratio == 4 ? 512 : 0};
        CacheFixture cache(step.spec, sequences);
        cache.FillRandom(random);
        Inputs in(random, step, cache);
        GuardBuffer<float> all(in.q.tensor().shape);
        in.Run(step, cache.View(0), all, false);
        for (size_t s = 0; s < batch; s += batch < 10 ? 1 : 15) {
          SequenceView seq = cache.sequences()[s];
          seq.begin = 0;
          seq.end = 1;
          const int32_t sequence_of = 0;
          CacheView one = cache.View(0);
          one.sequences = &seq;
          one.num_sequences = 1;
          one.sequence_of = &sequence_of;
          one.positions += s;
          one.num_tokens = 1;
          const int64_t dh = step.spec.head_dim, r = static_cast<int64_t>(s);
          GuardBuffer<float> out({1, heads, dh});
          Mirror gpu;
          SparseAttentionCuda(gpu.ctx(),
                              {.q = gpu.In({in.q.row(r).data(), DType::kF32, {1, heads, dh}}),
                               .kv = gpu.In({in.kv.row(r).data(), DType::kF32, {1, dh}}),
                               .sink = gpu.In(in.sink.tensor()),
                               .topk_idxs = step.picks > 0 ? gpu.In({in.picks.row(r).data(), DType::kI32, {1, step.picks}}) : Tensor{},
                               .cache = gpu.Cache(one),
                               .out = gpu.Out(out.tensor())});
          gpu.Finish();
          EXPECT_TRUE(BitEqual(out.span(), all.row(r))) << "ratio " << ratio << " heads " << heads << " sequence " << s;
        }
      }
    }
  }
}

// A prompt whose rows do not all fit in scratch memory once decoded gives the same bits, and so does one whose own rows do not.
TEST(CudaSparseAttention, PromptsBeyondScratch) {
  DSV4_GPU_OR_SKIP();
  Random random(9);
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16}) {
    for (const int64_t ratio : {0, 4, 128}) {
      const Step step{"", FullKvSpec({ratio}, dtype), {{900, 30}, {0, 50}, {10, 0}, {255, 2}}, 128, ratio == 4 ? 100 : 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      Inputs in(random, step, cache);
      GuardBuffer<float> out(in.q.tensor().shape), all(in.q.tensor().shape);
      const int64_t own = in.t + static_cast<int64_t>(step.sequences.size()) * step.spec.window;
      const int64_t room = 1024 + std::min<int64_t>(2 * in.t, Mirror().ctx().gpu.multiprocessors) * 2 * 64 * 512 * 2;
      in.Run(step, cache.View(0), all, false, Regime::kPrompt);
      for (const int64_t rows : {own + (ratio == 0 ? 0 : 1), own - 1, int64_t{0}}) {
        in.Run(step, cache.View(0), out, false, Regime::kPrompt, false, room + rows * 1024);
        EXPECT_TRUE(BitEqual(out.span(), all.span())) << "ratio " << ratio << ", room for " << rows << " rows";
      }
    }
  }
}

// The sink is a logit as it is: with q = 0 every score is 0, and n rows of value v give n v / (n + exp(sink)).
// (Lessons 11 and 12 of the prototype: the sink scaled, padded rows counted.)
TEST(CudaSparseAttention, TheSinkIsNotScaledAndPaddingNotCounted) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const bool full : {false, true}) {
    for (const bool decode : {false, true}) {
      const std::vector<SequenceStep> sequences = decode ? std::vector<SequenceStep>(40, {0, 1}) : std::vector<SequenceStep>{{0, 40}};
      const Step step{"", full ? FullKvSpec({0}) : TinyKvSpec({0}), sequences, full ? 64 : 3, 0};
      CacheFixture cache(step.spec, step.sequences);
      Inputs in(random, step, cache);
      std::fill(in.q.span().begin(), in.q.span().end(), 0.0f);
      std::fill(in.kv.span().begin(), in.kv.span().end(), 2.0f);
      in.sink[0] = 4.0f;
      in.sink[1] = -std::numeric_limits<float>::infinity();
      in.sink[2] = 200.0f;
      GuardBuffer<float> out(in.q.tensor().shape);
      in.Run(step, cache.View(0), out, false, decode ? Regime::kDecode : Regime::kPrompt);
      const int64_t dh = step.spec.head_dim;
      for (int64_t t = 0; t < 40; ++t) {
        const double n = decode ? 1 : static_cast<double>(t + 1);
        EXPECT_NEAR(out[(t * step.heads + 0) * dh], 2 * n / (n + std::exp(4.0)), 1e-5);
        EXPECT_NEAR(out[(t * step.heads + 1) * dh], 2.0, 1e-6);
        EXPECT_EQ(out[(t * step.heads + 2) * dh], 0.0f);
      }
    }
  }
}

TEST(CudaSparseAttention, LargeScoresDoNotOverflow) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const bool full : {false, true}) {
    const Step step{"", full ? FullKvSpec({0}) : TinyKvSpec({0}), {{0, 70}, {200, 1}}, full ? 64 : 2, 0};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    Inputs in(random, step, cache);
    for (float& v : in.q.span()) v = RoundToBf16(v * 1000);
    GuardBuffer<float> want(in.q.tensor().shape), out(in.q.tensor().shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention({.reference_ops = true}, args);
    in.Run(step, cache.View(0), out, false, full ? Regime::kPrompt : Regime::kDecode);
    for (const float v : out.span()) ASSERT_TRUE(std::isfinite(v));
    // q is exact in FP16, so only float32 roundings and those of the weights are left.
    std::vector<double> bounds = Bounds(args, true);
    for (size_t i = 0; i < bounds.size(); ++i) bounds[i] += 0x1p-11 * 6;
    EXPECT_TRUE(WithinBounds(out.span(), want.span(), bounds));
  }
}

// Rows up to FP16's limit keep their values: scales beyond 2^7 and channels up to 65,504.
TEST(CudaSparseAttention, HugeRows) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const int64_t tokens : {1, 70}) {
    const Step step{"", FullKvSpec({4}), {{300, tokens}, {40, 1}}, 64, 30};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random, 8000);
    std::vector<float> row = random.Normals(512);
    for (float& v : row) v *= 8000;
    for (size_t i = 0; i < row.size(); i += 100) row[i] = i % 200 == 0 ? 61440.0f : -61440.0f;
    cache.View(0).window_rows(cache.sequences()[1]).Write(17, row.data());
    Inputs in(random, step, cache);
    for (float& v : in.q.span()) v *= 0x1p-13f;
    for (float& v : in.kv.span()) v *= 0x1p13f;
    GuardBuffer<float> want(in.q.tensor().shape), out(in.q.tensor().shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention({.reference_ops = true}, args);
    in.Run(step, cache.View(0), out, false, tokens > 1 ? Regime::kPrompt : Regime::kDecode);
    EXPECT_TRUE(WithinBounds(out.span(), want.span(), Bounds(args, false))) << tokens;
  }
}

// Beyond it they saturate: with q = 0 the output is the mean of the clamped rows.
TEST(CudaSparseAttention, RowsBeyondFp16Saturate) {
  DSV4_GPU_OR_SKIP();
  for (const int64_t tokens : {1, 70}) {
    const Step step{"", FullKvSpec({0}), {{50, tokens}}, 64, 0};
    Random random(8);
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random, 1e6f);
    Inputs in(random, step, cache);
    std::fill(in.q.span().begin(), in.q.span().end(), 0.0f);
    std::fill(in.sink.span().begin(), in.sink.span().end(), 0.0f);
    for (float& v : in.kv.span()) v *= 0x1p20f;
    GuardBuffer<float> out(in.q.tensor().shape);
    in.Run(step, cache.View(0), out, false, tokens > 1 ? Regime::kPrompt : Regime::kDecode);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), out.tensor());
    std::vector<float> buffer(512);
    for (int64_t t = 0; t < in.t; ++t) {
      const AttendedRows rows(args, t);
      std::vector<double> mean(512);
      for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = rows.Get(i, buffer.data());
        for (size_t c = 0; c < 512; ++c) mean[c] += std::clamp(row[c], -65504.0f, 65504.0f) / static_cast<double>(rows.size() + 1);
      }
      for (int64_t i = 0; i < 64 * 512; ++i) ASSERT_NEAR(out[t * 64 * 512 + i], mean[static_cast<size_t>(i % 512)], 65504 * 0x1p-12) << t << " " << i;
    }
  }
}

// A NaN in a cached row reaches every head of the tokens that read it, and no other token.
TEST(CudaSparseAttention, NanInARow) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16}) {
    for (const int64_t channel : {3, 447, 500}) {
      const Step step{"", FullKvSpec({0}, dtype), {{50, 1}, {50, 1}}, 64, 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      std::vector<float> row = random.Normals(512);
      row[static_cast<size_t>(channel)] = std::numeric_limits<float>::quiet_NaN();
      cache.View(0).window_rows(cache.sequences()[1]).Write(17, row.data());
      Inputs in(random, step, cache);
      GuardBuffer<float> out(in.q.tensor().shape);
      in.Run(step, cache.View(0), out, false);
      for (int64_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i >= out.size() / 2) << i;
    }
  }
}

// Rows that no token sees are NaN in these caches; a NaN in one head stays in it (lesson 13: 0 x NaN on padded rows).
TEST(CudaSparseAttention, NanStaysInItsHead) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const bool full : {false, true}) {
    for (const bool decode : {false, true}) {
      const std::vector<SequenceStep> sequences = decode ? std::vector<SequenceStep>(6, {0, 1}) : std::vector<SequenceStep>{{0, 6}};
      const Step step{"", full ? FullKvSpec({4}) : TinyKvSpec({4}), sequences, full ? 64 : 2, 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      Inputs in(random, step, cache);
      const int64_t dh = step.spec.head_dim, bad = 2 * step.heads + 1;
      in.q[bad * dh + 5] = std::numeric_limits<float>::quiet_NaN();
      GuardBuffer<float> out(in.q.tensor().shape);
      in.Run(step, cache.View(0), out, false, decode ? Regime::kDecode : Regime::kPrompt);
      for (int64_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / dh == bad) << i;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
