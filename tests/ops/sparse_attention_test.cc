#include "ops/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "ops/rope/rope.h"
#include "ops/sparse_attention/rows.h"
#include "support/attention_fixture.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "tensor/codec/bf16.h"
#include "tensor/quant_tensor.h"

DSV4_DECLARE_KERNELS(SparseAttentionCpu, SparseAttentionArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<SparseAttentionArgs>> kSparseAttentionKernels = DSV4_KERNELS(SparseAttentionCpu);

void AttendWithin(const ExecContext& ctx, const SparseAttentionArgs& a, int64_t scratch_bytes) {
  Mirror gpu(ctx);
  if (scratch_bytes >= 0) gpu.ctx().scratch.bytes = scratch_bytes;
  SparseAttention(gpu.ctx(), {.q = gpu.In(a.q),
                              .kv = gpu.In(a.kv),
                              .sink = gpu.In(a.sink),
                              .topk_idxs = gpu.In(a.topk_idxs),
                              .cache = gpu.Cache(a.cache),
                              .out = gpu.Out(a.out),
                              .cos_sin = gpu.In(a.cos_sin)});
  gpu.Finish();
}

void SparseAttentionOnGpu(const ExecContext& ctx, const SparseAttentionArgs& a) { AttendWithin(ctx, a, -1); }

DSV4_DEVICE_TEST(SparseAttention, MatchesReference) {
  Random random(1);
  for (const AttentionStep& step : AttentionSteps(on)) {
    SCOPED_TRACE(step.name);
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);  // every ring row that no token sees stays NaN
    AttentionInputs in(random, step, cache);
    const Shape shape = in.q.tensor().shape;
    GuardBuffer<float> want(shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention(Reference(), args);
    for (const float v : want.span()) ASSERT_TRUE(std::isfinite(v));
    for (const AttentionWay& way : AttentionWays(on)) {
      SCOPED_TRACE(way.name());
      const std::vector<double> bounds = AttentionBounds(args, way);
      ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
        GuardBuffer<float> out(shape);
        run(way.ctx, in.Args(step, cache.View(0), out.tensor()));
        EXPECT_TRUE(WithinBounds(out.span(), want.span(), bounds));
        for (const ExecContext& threads : ThreadCounts()) {
          ExecContext ctx = way.ctx;
          ctx.pool = threads.pool;
          GuardBuffer<float> again(shape);
          run(ctx, in.Args(step, cache.View(0), again.tensor()));
          EXPECT_TRUE(BitEqual(again.span(), out.span()));
          if (on == On::kGpu) break;  // a GPU has no thread count
        }
      });
      // Rotating back equals a later Rope, bit for bit.
      const OpFn<SparseAttentionArgs> op = on == On::kGpu ? SparseAttentionOnGpu : SparseAttention;
      GuardBuffer<float> out(shape), turned(shape);
      op(way.ctx, in.Args(step, cache.View(0), out.tensor()));
      SparseAttentionArgs turning = in.Args(step, cache.View(0), turned.tensor());
      turning.cos_sin = in.cos_sin.tensor();
      op(way.ctx, turning);
      Rope(Reference(), {.x = out.tensor(), .cos_sin = in.cos_sin.tensor(), .inverse = true});
      EXPECT_TRUE(BitEqual(turned.span(), out.span()));
    }
  }
}

// A view of one token of `view`, in a sequence of its own.
struct OneToken {
  OneToken(const CacheView& view, const SequenceView& seq, int64_t token) : sequence(seq), one(view) {
    sequence.begin = 0;
    sequence.end = 1;
    one.sequences = &sequence;
    one.num_sequences = 1;
    one.sequence_of = &zero;
    one.positions += token;
    one.num_tokens = 1;
  }
  OneToken(const OneToken&) = delete;
  OneToken& operator=(const OneToken&) = delete;
  int32_t zero = 0;
  SequenceView sequence;
  CacheView one;
};

// Tokens of several sequences in one step, and each token alone: its own rows of this step are then in the ring, as the
// window append of an F32 cache leaves them. On a GPU a row from a cache may be summed in another order.
TEST(SparseAttention, ATokenAloneGivesTheSameBits) {
  Random random(2);
  for (const int64_t ratio : {0, 4, 128}) {
    const AttentionStep step{
        "", TinyKvSpec({ratio}, KvDtype::kF32), {{.cached = 250, .tokens = 140}}, 6, ratio == 4 ? 17 : 0};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    AttentionInputs in(random, step, cache);
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
      for (int64_t i = 0; i < in.t; ++i) {
        OneToken alone(copy.View(0), to, i);
        alone.sequence.start += i;
        GuardBuffer<float> out({1, step.heads, step.spec.head_dim});
        run(TwoThreads(), in.OneArgs(step, i, alone.one, out.tensor()));
        EXPECT_TRUE(BitEqual(out.span(), all.row(i))) << "ratio " << ratio << " token " << i;
        copy.View(0).window_rows(to).Write((250 + i) % copy.View(0).layer->window_slots, in.kv.row(i).data());
      }
    });
  }
}

// A decode step of several sequences, and each sequence alone.
DSV4_DEVICE_TEST(SparseAttention, ASequenceAloneGivesTheSameBits) {
  Random random(2);
  const std::vector<int64_t> head_counts = on == On::kGpu ? std::vector<int64_t>{16, 64, 128} : std::vector<int64_t>{5};
  for (const int64_t ratio : {0, 4, 128}) {
    for (const int64_t heads : head_counts) {
      for (const size_t batch : {size_t{3}, size_t{17}, size_t{64}}) {
        std::vector<SequenceStep> sequences;
        for (size_t s = 0; s < batch; ++s) sequences.push_back({.cached = random.Index(900), .tokens = 1});
        const AttentionStep step{"", FullKvSpec({ratio}), sequences, heads, ratio == 4 ? 512 : 0};
        CacheFixture cache(step.spec, sequences);
        cache.FillRandom(random);
        AttentionInputs in(random, step, cache);
        const ExecContext ctx = WayOf(on, Regime::kDecode).ctx;
        ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
          GuardBuffer<float> all(in.q.tensor().shape);
          run(ctx, in.Args(step, cache.View(0), all.tensor()));
          for (size_t s = 0; s < batch; s += batch < 10 ? 1 : 15) {
            const int64_t r = static_cast<int64_t>(s);
            OneToken alone(cache.View(0), cache.sequences()[s], r);
            GuardBuffer<float> out({1, heads, step.spec.head_dim});
            run(ctx, in.OneArgs(step, r, alone.one, out.tensor()));
            EXPECT_TRUE(BitEqual(out.span(), all.row(r)))
                << "ratio " << ratio << " heads " << heads << " sequence " << s;
          }
        });
      }
    }
  }
}

// A prompt whose decoded rows do not all fit in a GPU's scratch memory gives the same bits. The same holds for a prompt
// whose own rows do not fit.
TEST(CudaSparseAttention, PromptsBeyondScratch) {
  DSV4_GPU_OR_SKIP();
  Random random(9);
  const ExecContext prompt{.regime = Regime::kPrompt};
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16}) {
    for (const int64_t ratio : {0, 4, 128}) {
      const AttentionStep step{
          "", FullKvSpec({ratio}, dtype), {{900, 30}, {0, 50}, {10, 0}, {255, 2}}, 128, ratio == 4 ? 100 : 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      AttentionInputs in(random, step, cache);
      GuardBuffer<float> out(in.q.tensor().shape), all(in.q.tensor().shape);
      const auto sequences = static_cast<int64_t>(step.sequences.size());
      const int64_t own = in.t + sequences * (step.spec.window + step.spec.spare_slots);
      const int64_t room = 1024 + std::min<int64_t>(2 * in.t, Mirror().ctx().gpu.multiprocessors) * 2 * 64 * 512 * 2;
      SparseAttentionOnGpu(prompt, in.Args(step, cache.View(0), all.tensor()));
      for (const int64_t rows : {own + (ratio == 0 ? 0 : 1), own - 1, int64_t{0}}) {
        AttendWithin(prompt, in.Args(step, cache.View(0), out.tensor()), room + rows * 1024);
        EXPECT_TRUE(BitEqual(out.span(), all.span())) << "ratio " << ratio << ", room for " << rows << " rows";
      }
    }
  }
}

// The sink is an unscaled logit: with q = 0 every score is 0, and n rows of value v give n v / (n + exp(sink)). Padded
// rows do not count.
DSV4_DEVICE_TEST(SparseAttention, TheSinkIsNotScaledAndPaddingNotCounted) {
  Random random(3);
  for (const bool full : {false, true}) {
    for (const bool decode : {false, true}) {
      const std::vector<SequenceStep> sequences = decode ? std::vector<SequenceStep>(40, {0, 1})
                                                         : std::vector<SequenceStep>{{0, 40}};
      const AttentionStep step{"", full ? FullKvSpec({0}) : TinyKvSpec({0}), sequences, full ? 64 : 3, 0};
      CacheFixture cache(step.spec, step.sequences);
      AttentionInputs in(random, step, cache);
      std::fill(in.q.span().begin(), in.q.span().end(), 0.0f);
      std::fill(in.kv.span().begin(), in.kv.span().end(), 2.0f);
      in.sink[0] = 4.0f;
      in.sink[1] = -std::numeric_limits<float>::infinity();
      in.sink[2] = 200.0f;
      ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
        GuardBuffer<float> out(in.q.tensor().shape);
        run(WayOf(on, decode ? Regime::kDecode : Regime::kPrompt).ctx, in.Args(step, cache.View(0), out.tensor()));
        const int64_t dh = step.spec.head_dim;
        for (int64_t t = 0; t < 40; ++t) {
          const double n = decode ? 1 : static_cast<double>(t + 1);
          EXPECT_NEAR(out[(t * step.heads + 0) * dh], 2 * n / (n + std::exp(4.0)), 1e-5);
          EXPECT_NEAR(out[(t * step.heads + 1) * dh], 2.0, 1e-6);
          EXPECT_EQ(out[(t * step.heads + 2) * dh], 0.0f);
        }
      });
    }
  }
}

DSV4_DEVICE_TEST(SparseAttention, LargeScoresDoNotOverflow) {
  Random random(4);
  for (const bool full : {false, true}) {
    const AttentionStep step{"", full ? FullKvSpec({0}) : TinyKvSpec({0}), {{0, 70}, {200, 1}}, full ? 64 : 2, 0};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    AttentionInputs in(random, step, cache);
    for (float& v : in.q.span()) v = RoundToBf16(v * 1000);
    GuardBuffer<float> want(in.q.tensor().shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention(Reference(), args);
    AttentionWay way = WayOf(on, full ? Regime::kPrompt : Regime::kDecode);
    const bool half = way.half;
    way.half = false;  // q is exact in FP16: only roundings in float32 and of the weights remain
    std::vector<double> bounds = AttentionBounds(args, way);
    for (double& bound : bounds) bound += half ? 0x1p-11 * 6 : 0;
    ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
      GuardBuffer<float> out(in.q.tensor().shape);
      run(way.ctx, in.Args(step, cache.View(0), out.tensor()));
      for (const float v : out.span()) ASSERT_TRUE(std::isfinite(v));
      EXPECT_TRUE(WithinBounds(out.span(), want.span(), bounds));
    });
  }
}

// Rows up to FP16's limit keep their values: scales beyond 2^7 and channels up to 65,504.
DSV4_DEVICE_TEST(SparseAttention, HugeRows) {
  Random random(6);
  for (const int64_t tokens : {1, 70}) {
    const AttentionStep step{"", FullKvSpec({4}), {{300, tokens}, {40, 1}}, on == On::kGpu ? 64 : 3, 30};
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random, 8000);
    std::vector<float> row = random.Normals(512);
    for (float& v : row) v *= 8000;
    for (size_t i = 0; i < row.size(); i += 100) row[i] = i % 200 == 0 ? 61440.0f : -61440.0f;
    cache.View(0).window_rows(cache.sequences()[1]).Write(17, row.data());
    AttentionInputs in(random, step, cache);
    for (float& v : in.q.span()) v *= 0x1p-13f;
    for (float& v : in.kv.span()) v *= 0x1p13f;
    GuardBuffer<float> want(in.q.tensor().shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), want.tensor());
    SparseAttention(Reference(), args);
    const AttentionWay way = WayOf(on, tokens > 1 ? Regime::kPrompt : Regime::kDecode);
    ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
      GuardBuffer<float> out(in.q.tensor().shape);
      run(way.ctx, in.Args(step, cache.View(0), out.tensor()));
      EXPECT_TRUE(WithinBounds(out.span(), want.span(), AttentionBounds(args, way))) << tokens;
    });
  }
}

// Beyond this limit they saturate on a GPU: with q = 0 the output is the mean of the clamped rows.
TEST(CudaSparseAttention, RowsBeyondFp16Saturate) {
  DSV4_GPU_OR_SKIP();
  for (const int64_t tokens : {1, 70}) {
    const AttentionStep step{"", FullKvSpec({0}), {{50, tokens}}, 64, 0};
    Random random(8);
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random, 1e6f);
    AttentionInputs in(random, step, cache);
    std::fill(in.q.span().begin(), in.q.span().end(), 0.0f);
    std::fill(in.sink.span().begin(), in.sink.span().end(), 0.0f);
    for (float& v : in.kv.span()) v *= 0x1p20f;
    GuardBuffer<float> out(in.q.tensor().shape);
    const SparseAttentionArgs args = in.Args(step, cache.View(0), out.tensor());
    SparseAttentionOnGpu({.regime = tokens > 1 ? Regime::kPrompt : Regime::kDecode}, args);
    std::vector<float> buffer(512);
    for (int64_t t = 0; t < in.t; ++t) {
      const AttendedRows rows(args, t);
      std::vector<double> mean(512);
      for (int64_t i = 0; i < rows.size(); ++i) {
        const float* row = rows.Get(i, buffer.data());
        for (size_t c = 0; c < 512; ++c)
          mean[c] += std::clamp(row[c], -65504.0f, 65504.0f) / static_cast<double>(rows.size() + 1);
      }
      for (int64_t i = 0; i < 64 * 512; ++i)
        ASSERT_NEAR(out[t * 64 * 512 + i], mean[static_cast<size_t>(i % 512)], 65504 * 0x1p-12) << t << " " << i;
    }
  }
}

// A NaN in a cached row reaches every head of the tokens that read it, and no other token.
DSV4_DEVICE_TEST(SparseAttention, NanInARow) {
  Random random(7);
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16}) {
    for (const int64_t channel : {3, 447, 500}) {
      const AttentionStep step{"", FullKvSpec({0}, dtype), {{50, 1}, {50, 1}}, 64, 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      std::vector<float> row = random.Normals(512);
      row[static_cast<size_t>(channel)] = std::numeric_limits<float>::quiet_NaN();
      cache.View(0).window_rows(cache.sequences()[1]).Write(17, row.data());
      AttentionInputs in(random, step, cache);
      ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
        GuardBuffer<float> out(in.q.tensor().shape);
        run(WayOf(on, Regime::kDecode).ctx, in.Args(step, cache.View(0), out.tensor()));
        for (int64_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i >= out.size() / 2) << i;
      });
    }
  }
}

// Rows that no token sees are NaN in these caches; a NaN in one head stays in it (padded rows would give 0 x NaN).
DSV4_DEVICE_TEST(SparseAttention, NanStaysInItsHead) {
  Random random(5);
  for (const bool full : {false, true}) {
    for (const bool decode : {false, true}) {
      const std::vector<SequenceStep> sequences = decode ? std::vector<SequenceStep>(6, {0, 1})
                                                         : std::vector<SequenceStep>{{0, 6}};
      const AttentionStep step{"", full ? FullKvSpec({4}) : TinyKvSpec({4}), sequences, full ? 64 : 2, 0};
      CacheFixture cache(step.spec, step.sequences);
      cache.FillRandom(random);
      AttentionInputs in(random, step, cache);
      const int64_t dh = step.spec.head_dim, bad = 2 * step.heads + 1;
      in.q[bad * dh + 5] = std::numeric_limits<float>::quiet_NaN();
      ForEachKernel(on, kSparseAttentionKernels, SparseAttentionOnGpu, [&](const auto run) {
        GuardBuffer<float> out(in.q.tensor().shape);
        run(WayOf(on, decode ? Regime::kDecode : Regime::kPrompt).ctx, in.Args(step, cache.View(0), out.tensor()));
        for (int64_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / dh == bad) << i;
      });
    }
  }
}

}  // namespace
}  // namespace dsv4::test
