#include "ops/index_topk/index_topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/round_index_query/round_index_query.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"

namespace dsv4 {
void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& args);
}

namespace dsv4::test {
namespace {

struct Step {
  KvSpec spec;
  std::vector<SequenceStep> sequences;
  int64_t heads, k;
};

std::vector<Step> Steps() {
  KvSpec odd = TinyKvSpec({4});
  odd.index_head_dim = 12;
  odd.index_dtype = IndexDtype::kBf16;
  return {
      {TinyKvSpec({4}), {{0, 1}, {3, 1}, {0, 9}}, 3, 2},
      {TinyKvSpec({4}), {{1030, 1}}, 8, 16},
      {TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{500, 70}, {0, 0}, {129, 5}}, 5, 32},
      {FullKvSpec({4}), {{2043, 7}, {777, 40}}, 4, 64},
      {FullKvSpec({4}), {{3000, 1}, {4111, 1}, {100, 1}, {8200, 1}}, 64, 512},
      {FullKvSpec({4}), {{600, 20}}, 64, 100},
      {FullKvSpec({4}), {{700, 90}, {1999, 45}}, 24, 128},
      {FullKvSpec({4}, KvDtype::kFp8, IndexDtype::kBf16), {{900, 150}, {2222, 1}}, 64, 128},
      {FullKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{900, 33}, {2222, 1}}, 64, 128},
      {odd, {{400, 3}, {90, 20}}, 4, 8},
  };
}

void ChooseOnGpu(const Tensor& q, const Tensor& weights, const CacheView& cache, GuardBuffer<int32_t>& out) {
  Mirror gpu;
  IndexTopkCuda(gpu.ctx(), {.q = gpu.In(q),
                            .weights = gpu.In(weights),
                            .cache = gpu.Cache(cache),
                            .topk_idxs = gpu.Out(out.tensor())});
  gpu.Finish();
}

// Keys of small whole numbers: every product and sum is exact.
void FillExact(Random& random, const CacheFixture& cache) {
  const CompressorLayout& keys = cache.layout().layers[0].index;
  for (const SequenceView& seq : cache.sequences()) {
    for (int64_t row = 0; row < (seq.start + seq.end - seq.begin) / 4; ++row) {
      std::vector<float> key(static_cast<size_t>(keys.dim));
      for (float& v : key) v = static_cast<float>(random.Index(5) - 2);
      key[0] = 4.0f;  // the block's largest: scale 1, whole numbers stay whole in FP4
      const RowSlot slot = EmittedRow(keys, seq, row);
      slot.rows.Write(slot.index, key.data());
    }
  }
}

// Exact scores with many ties: the choice must be the reference's.
TEST(CudaIndexTopk, EqualsReferenceOnExactScores) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const Step& step : Steps()) {
    CacheFixture cache(step.spec, step.sequences);
    FillExact(random, cache);
    const int64_t t = cache.num_tokens(), di = step.spec.index_head_dim;
    GuardBuffer<float> q({t, step.heads, di}), weights({t, step.heads});
    for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
    for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
    GuardBuffer<int32_t> want({t, step.k}), got({t, step.k}), again({t, step.k});
    IndexTopk(
        {.reference_ops = true},
        {.q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()});
    ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), got);
    EXPECT_EQ(got.values(), want.values()) << "heads " << step.heads << " Di " << di;
    ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), again);
    EXPECT_EQ(again.values(), got.values());
  }
}

// The longest context of the figures: 32,768 rows.
TEST(CudaIndexTopk, EqualsReferenceAtLongContext) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  CacheFixture cache(FullKvSpec({4}), {{131071, 1}});
  FillExact(random, cache);
  GuardBuffer<float> q({1, 64, 128}), weights({1, 64});
  for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
  for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
  GuardBuffer<int32_t> want({1, 512}), got({1, 512});
  IndexTopk(
      {}, {.q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()});
  ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), got);
  EXPECT_EQ(got.values(), want.values());
}

// One token: rows that end at and behind the edges of what a warp, a block and all blocks take at once; the newest row, which
// this step wrote, is the best or the worst.
TEST(CudaIndexTopk, EqualsReferenceForOneTokenAtEdges) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16}) {
    for (const int64_t rows : {513, 527, 528, 529, 640, 641, 1025, 16896, 16897, 16913}) {
      CacheFixture cache(FullKvSpec({4}, KvDtype::kFp8, dtype), {{4 * rows - 1, 1}});
      FillExact(random, cache);
      const CompressorLayout& keys = cache.layout().layers[0].index;
      const RowSlot newest = EmittedRow(keys, cache.sequences()[0], rows - 1);
      std::vector<float> key(static_cast<size_t>(keys.dim), 4.0f);
      newest.rows.Write(newest.index, key.data());
      GuardBuffer<float> q({1, 64, 128}), weights({1, 64});
      for (float& v : q.span()) v = static_cast<float>(random.Index(3));
      for (float& v : weights.span())
        v = (rows % 2 ? 0.25f : -0.25f) * static_cast<float>(1 + random.Index(2));
      GuardBuffer<int32_t> want({1, 512}), got({1, 512});
      IndexTopk(
          {},
          {.q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()});
      ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), got);
      EXPECT_EQ(got.values(), want.values()) << rows;
      EXPECT_EQ(got[511] == rows - 1, rows % 2 == 1) << rows;
    }
  }
}

// More rows than a block keeps in shared memory, in blocks for many tokens.
TEST(CudaIndexTopk, EqualsReferenceForManyTokensAtLongContext) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  CacheFixture cache(TinyKvSpec({4}), {{45000, 130}});
  FillExact(random, cache);
  GuardBuffer<float> q({130, 2, 32}), weights({130, 2});
  for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
  for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
  GuardBuffer<int32_t> want({130, 512}), got({130, 512});
  IndexTopk(
      {}, {.q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()});
  ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), got);
  EXPECT_EQ(got.values(), want.values());
}

// Random scores: what is in may be below what is out by twice the error bound of a score at most.
// A dot product of Di terms and a sum over heads in any order: gamma_{Di + 2 heads} of the magnitudes; tensor cores
// truncate where float32 rounds, which doubles it.
TEST(CudaIndexTopk, ChoosesTheLargestScores) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const Step& step : Steps()) {
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    const CompressorLayout& keys = cache.layout().layers[0].index;
    const int64_t t = cache.num_tokens(), di = keys.dim;
    GuardBuffer<float> q({t, step.heads, di}, random.Normals(t * step.heads * di));
    GuardBuffer<float> weights({t, step.heads}, random.Normals(t * step.heads));
    if (di % 32 == 0)
      RoundIndexQuery({}, {.q = q.tensor(), .dtype = step.spec.index_dtype});
    else
      for (float& v : q.span()) RoundRow({.kind = RowFormat::Kind::kBf16, .dim = 1, .data_bytes = 2}, &v);
    GuardBuffer<int32_t> got({t, step.k});
    const CacheView view = cache.View(0);
    ChooseOnGpu(q.tensor(), weights.tensor(), view, got);
    std::vector<float> key(static_cast<size_t>(di));
    for (int64_t token = 0; token < t; ++token) {
      const int64_t visible = (view.positions[token] + 1) / 4, count = std::min(visible, step.k);
      double lowest_in = HUGE_VAL, highest_out = -HUGE_VAL, error = 0;
      const auto row = got.row(token);
      EXPECT_TRUE(std::is_sorted(row.begin(), row.begin() + count));
      for (int64_t i = count; i < step.k; ++i) EXPECT_EQ(row[static_cast<size_t>(i)], -1);
      if (visible <= step.k) {
        for (int64_t i = 0; i < count; ++i) EXPECT_EQ(row[static_cast<size_t>(i)], i);
        continue;
      }
      for (int64_t w = 0; w < visible; ++w) {
        const RowSlot slot = EmittedRow(keys, view.sequence(token), w);
        slot.rows.Read(slot.index, key.data());
        double score = 0, magnitude = 0;
        for (int64_t h = 0; h < step.heads; ++h) {
          double dot = 0, sum = 0;
          for (int64_t i = 0; i < di; ++i) {
            const double product = static_cast<double>(q[(token * step.heads + h) * di + i]) *
                                   key[static_cast<size_t>(i)];
            dot += product;
            sum += std::fabs(product);
          }
          score += weights[token * step.heads + h] * std::max(dot, 0.0);
          magnitude += std::fabs(weights[token * step.heads + h]) * sum;
        }
        error = std::max(error, 2 * Gamma(di + 2 * step.heads) * magnitude);
        if (std::binary_search(row.begin(), row.begin() + count, w)) {
          lowest_in = std::min(lowest_in, score);
        } else {
          highest_out = std::max(highest_out, score);
        }
      }
      ASSERT_GE(lowest_in, highest_out - 2 * error) << token;
    }
  }
}

// NaN scores rank below everything, -inf included; zeros of either sign tie; equal scores go by row. A key whose first
// channel is the score and one head of weight 1 or -1 give any score there is (F32 keys).
TEST(CudaIndexTopk, SelectsExactlyWhateverTheScores) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const int64_t context : {40, 4099, 16383, 16387, 33000, 141234, 1048575}) {
    for (const int64_t k : {1, 7, 512, 1024}) {
      if (context > 1000000 && k != 512) continue;
      for (int kind = 0; kind < 5; ++kind) {
        CacheFixture cache(TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{context, 1}});
        const CompressorLayout& keys = cache.layout().layers[0].index;
        const SequenceView& seq = cache.sequences()[0];
        for (int64_t row = 0; row < (context + 1) / 4; ++row) {
          std::vector<float> key(static_cast<size_t>(keys.dim), 0.0f);
          float& v = key[0];
          if (kind == 0) v = static_cast<float>(random.Index(3));
          if (kind == 1) v = random.Chance(0.3) ? std::nanf("") : random.Normal();
          if (kind == 2) v = 1.0f;
          if (kind == 3) v = 1.0f + static_cast<float>(random.Index(64)) * 0x1p-23f;
          if (kind == 4)
            v = random.Chance(0.5)   ? std::numeric_limits<float>::infinity()
                : random.Chance(0.5) ? std::nanf("")
                                     : -random.Normal();
          const RowSlot slot = EmittedRow(keys, seq, row);
          slot.rows.Write(slot.index, key.data());
        }
        GuardBuffer<float> q({1, 1, keys.dim}, std::vector<float>(static_cast<size_t>(keys.dim), 0.0f)),
            weights({1, 1}, {kind % 2 ? -1.0f : 1.0f});
        q[0] = 1;
        GuardBuffer<int32_t> want({1, k}), got({1, k});
        if (kind == 4) {  // 0 * inf in the other channels is not wanted
          for (int64_t i = 1; i < keys.dim; ++i) q[i] = 0;
        }
        IndexTopk(
            {.reference_ops = true},
            {.q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()});
        ChooseOnGpu(q.tensor(), weights.tensor(), cache.View(0), got);
        ASSERT_EQ(got.values(), want.values()) << context << " " << k << " " << kind;
      }
    }
  }
}

// Scores that differ in the last bit would break ties differently.
TEST(CudaIndexTopk, ATokenAloneChoosesTheSame) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kF32}) {
    const KvSpec spec = FullKvSpec({4}, KvDtype::kFp8, dtype);
    CacheFixture batch(spec, {{.cached = 1600, .tokens = 64}});
    batch.FillRandom(random);
    const int64_t t = 64, heads = 64, di = spec.index_head_dim, k = 128;
    GuardBuffer<float> q({t, heads, di}, random.Normals(t * heads * di)),
        weights({t, heads}, random.Normals(t * heads));
    RoundIndexQuery({}, {.q = q.tensor(), .dtype = dtype});
    GuardBuffer<int32_t> all({t, k});
    ChooseOnGpu(q.tensor(), weights.tensor(), batch.View(0), all);
    for (const int64_t i : {0, 1, 31, 63}) {
      CacheView one = batch.View(0);
      SequenceView seq = batch.sequences()[0];
      seq.start += i;
      seq.begin = 0;
      seq.end = 1;
      const int32_t sequence_of = 0;
      one.sequences = &seq;
      one.sequence_of = &sequence_of;
      one.positions += i;
      one.num_tokens = 1;
      GuardBuffer<int32_t> got({1, k});
      ChooseOnGpu({q.row(i).data(), DType::kF32, {1, heads, di}},
                  {weights.row(i).data(), DType::kF32, {1, heads}}, one, got);
      EXPECT_TRUE(std::equal(got.span().begin(), got.span().end(), all.row(i).begin())) << i;
    }
  }
}

// Tests that end soon under compute-sanitizer have names with Short: little work, each kernel once.
void ExpectReferencesChoice(const Tensor& q, const Tensor& weights, const CacheFixture& cache, int64_t k) {
  GuardBuffer<int32_t> want({q.dim(0), k}), got({q.dim(0), k});
  IndexTopk({}, {.q = q, .weights = weights, .cache = cache.View(0), .topk_idxs = want.tensor()});
  ChooseOnGpu(q, weights, cache.View(0), got);
  EXPECT_EQ(got.values(), want.values());
}

// One token, scores that are all different whole numbers, or all equal: these only the radix choice tells apart.
void ChooseFromNumbers(int64_t rows, bool alike) {
  CacheFixture cache(TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{4 * rows - 1, 1}});
  const CompressorLayout& keys = cache.layout().layers[0].index;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> key(static_cast<size_t>(keys.dim), 0.0f);
    key[0] = alike ? 1.0f : static_cast<float>(row * 7919 % 65536);
    const RowSlot slot = EmittedRow(keys, cache.sequences()[0], row);
    slot.rows.Write(slot.index, key.data());
  }
  GuardBuffer<float> q({1, 1, keys.dim}, std::vector<float>(static_cast<size_t>(keys.dim), 1.0f)), weights({1, 1}, {1.0f});
  ExpectReferencesChoice(q.tensor(), weights.tensor(), cache, 100);
}

// The last `tokens` of a sequence of `rows` compressed rows, which may stand behind one without a token.
void ChooseFromSums(const KvSpec& spec, int64_t rows, int64_t tokens, int64_t heads, bool second = false) {
  Random random(9);
  std::vector<SequenceStep> sequences = {{4 * rows - tokens, tokens}};
  if (second) sequences.insert(sequences.begin(), {.cached = 90, .tokens = 0});
  CacheFixture cache(spec, sequences);
  FillExact(random, cache);
  GuardBuffer<float> q({tokens, heads, spec.index_head_dim}), weights({tokens, heads});
  for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
  for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
  ExpectReferencesChoice(q.tensor(), weights.tensor(), cache, 100);
}

// One block chooses, and where it cannot decide the radix choice of one block does.
TEST(CudaIndexTopk, OneBlockChoosesShort) {
  DSV4_GPU_OR_SKIP();
  ChooseFromNumbers(700, /*alike=*/false);
  ChooseFromNumbers(700, /*alike=*/true);
}

// The same by a cluster.
TEST(CudaIndexTopk, AClusterChoosesShort) {
  DSV4_GPU_OR_SKIP();
  ChooseFromNumbers(4500, /*alike=*/false);
  ChooseFromNumbers(4500, /*alike=*/true);
}

// Scores of one token by tensor cores; the last row is this step's, or rows end within a warp's 16.
TEST(CudaIndexTopk, OneTokensScoresShort) {
  DSV4_GPU_OR_SKIP();
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16}) {
    const KvSpec spec = FullKvSpec({4}, KvDtype::kFp8, dtype);
    for (const int64_t rows : {144, 151}) ChooseFromSums(spec, rows, 1, 64);
    ChooseFromSums(spec, 130, 1, 64, /*second=*/true);
  }
}

// The kernels of more tokens: clusters of eight and of four, a block, a block of fewer threads.
TEST(CudaIndexTopk, MoreTokensShort) {
  DSV4_GPU_OR_SKIP();
  const KvSpec spec = TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kFp4), full = FullKvSpec({4});
  for (const int64_t tokens : {2, 17, 33, 129}) ChooseFromSums(spec, 150, tokens, 2);
  ChooseFromSums(full, 150, 2, 64);
  ChooseFromSums(full, 150, 129, 8);
}

}  // namespace
}  // namespace dsv4::test
