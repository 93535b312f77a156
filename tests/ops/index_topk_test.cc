#include "ops/index_topk/index_topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "ops/index_topk/select.h"
#include "ops/kernels.h"
#include "ops/round_index_query/round_index_query.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "tensor/quant_tensor.h"

DSV4_DECLARE_KERNELS(IndexTopkCpu, IndexTopkArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<IndexTopkArgs>> kIndexTopkKernels = DSV4_KERNELS(IndexTopkCpu);

void IndexTopkOnGpu(const ExecContext&, const IndexTopkArgs& a) {
  Mirror gpu;
  IndexTopk(
      gpu.ctx(),
      {.q = gpu.In(a.q), .weights = gpu.In(a.weights), .cache = gpu.Cache(a.cache), .topk_idxs = gpu.Out(a.topk_idxs)});
  gpu.Finish();
}

// The expected result of SelectTopk, by a full sort.
std::vector<int32_t> SortedTopk(const std::vector<float>& score, int64_t k) {
  std::vector<int32_t> order(score.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = score[static_cast<size_t>(a)], y = score[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

TEST(SelectTopk, EqualsAFullSort) {
  Random random(1);
  std::vector<int32_t> scratch;
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t n = random.Index(200), k = 1 + random.Index(64);
    std::vector<float> score(static_cast<size_t>(n));
    const int64_t distinct = 1 + random.Index(trial % 3 == 0 ? 3 : 1000);
    for (float& s : score) {
      s = static_cast<float>(random.Index(distinct)) - 1;
      if (random.Chance(0.02)) s = std::numeric_limits<float>::quiet_NaN();
      if (random.Chance(0.02)) s = -std::numeric_limits<float>::infinity();
    }
    std::vector<int32_t> got(static_cast<size_t>(k), -7);
    SelectTopk(score.data(), n, k, scratch, got.data());
    EXPECT_EQ(got, SortedTopk(score, k)) << "n " << n << " k " << k;
  }
}

// Long lists are reduced several times; with rising scores always, with falling scores once.
TEST(SelectTopk, TheOrderOfALongListDoesNotMatter) {
  Random random(5);
  std::vector<int32_t> scratch;
  for (const int64_t k : {1, 3, 64}) {
    for (const int64_t n : {16 * k, 16 * k + 1, int64_t{10000}}) {
      std::vector<float> rising(static_cast<size_t>(n)), nan(rising.size(), std::numeric_limits<float>::quiet_NaN());
      for (int64_t i = 0; i < n; ++i) rising[static_cast<size_t>(i)] = static_cast<float>(i / 3);
      const std::vector<float> falling(rising.rbegin(), rising.rend()), equal(rising.size(), 1.0f);
      std::vector<float> late = nan;  // the last scores, after many NaN, are numbers
      for (int64_t i = n - k / 2 - 1; i < n; ++i)
        late[static_cast<size_t>(i)] = -std::numeric_limits<float>::infinity();
      for (const auto& score : {rising, falling, equal, nan, late, random.Normals(n)}) {
        std::vector<int32_t> got(static_cast<size_t>(k), -7);
        SelectTopk(score.data(), n, k, scratch, got.data());
        EXPECT_EQ(got, SortedTopk(score, k)) << "n " << n << " k " << k;
      }
    }
  }
}

struct TopkStep {
  KvSpec spec;
  std::vector<SequenceStep> sequences;
  int64_t heads, k;
};

// A GPU has kernels for more sizes, and is fast enough to test them.
std::vector<TopkStep> TopkSteps(On on) {
  KvSpec odd = TinyKvSpec({4});
  odd.index_head_dim = 12;
  odd.index_dtype = IndexDtype::kBf16;
  std::vector<TopkStep> steps = {
      {TinyKvSpec({4}), {{0, 1}, {3, 1}, {0, 9}}, 3, 2},
      {TinyKvSpec({4}), {{1030, 1}}, 8, 16},
      {TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{500, 70}, {0, 0}, {129, 5}}, 5, 32},
      {FullKvSpec({4}), {{2043, 7}, {777, 40}}, 4, 64},
      {odd, {{400, 3}, {90, 20}}, 4, 8},
  };
  if (on == On::kCpu) return steps;
  steps.push_back({FullKvSpec({4}), {{3000, 1}, {4111, 1}, {100, 1}, {8200, 1}}, 64, 512});
  steps.push_back({FullKvSpec({4}), {{600, 20}}, 64, 100});
  steps.push_back({FullKvSpec({4}), {{700, 90}, {1999, 45}}, 24, 128});
  steps.push_back({FullKvSpec({4}, KvDtype::kFp8, IndexDtype::kBf16), {{900, 150}, {2222, 1}}, 64, 128});
  steps.push_back({FullKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{900, 33}, {2222, 1}}, 64, 128});
  return steps;
}

// Calls choose(q, weights, cache, out) for every kernel of the device, on a CPU on any number of threads.
using TopkFn = std::function<void(const Tensor& q, const Tensor& weights, const CacheView& cache,
                                  GuardBuffer<int32_t>& out)>;
void ForEachTopk(On on, const std::function<void(const TopkFn&)>& fn) {
  ForEachKernel(on, kIndexTopkKernels, IndexTopkOnGpu, [&](const auto run) {
    for (const ExecContext& ctx : ThreadCounts()) {
      fn([&](const Tensor& q, const Tensor& weights, const CacheView& cache, GuardBuffer<int32_t>& out) {
        run(ctx, {.q = q, .weights = weights, .cache = cache, .topk_idxs = out.tensor()});
      });
      if (on == On::kGpu) break;  // a GPU has no thread count
    }
  });
}

// Keys of small whole numbers: every product and sum is exact, ties are frequent.
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

// Queries and weights of the same kind.
struct ExactQueries {
  ExactQueries(Random& random, int64_t t, int64_t heads, int64_t dim) : q({t, heads, dim}), weights({t, heads}) {
    for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
    for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
  }
  GuardBuffer<float> q, weights;
};

// Every kernel, twice, gives the choice of the reference.
void ExpectReferencesChoice(On on, const Tensor& q, const Tensor& weights, const CacheFixture& cache, int64_t k) {
  GuardBuffer<int32_t> want({q.dim(0), k});
  IndexTopk(Reference(), {.q = q, .weights = weights, .cache = cache.View(0), .topk_idxs = want.tensor()});
  ForEachTopk(on, [&](const TopkFn& choose) {
    for (int time = 0; time < 2; ++time) {
      GuardBuffer<int32_t> got({q.dim(0), k});
      choose(q, weights, cache.View(0), got);
      EXPECT_EQ(got.values(), want.values()) << "heads " << q.dim(1) << " Di " << q.dim(2);
    }
  });
}

DSV4_DEVICE_TEST(IndexTopk, EqualsReferenceOnExactScores) {
  Random random(2);
  for (const TopkStep& step : TopkSteps(on)) {
    CacheFixture cache(step.spec, step.sequences);
    FillExact(random, cache);
    ExactQueries exact(random, cache.num_tokens(), step.heads, step.spec.index_head_dim);
    ExpectReferencesChoice(on, exact.q.tensor(), exact.weights.tensor(), cache, step.k);
  }
}

// The longest context of the figures: 32,768 rows.
DSV4_DEVICE_TEST(IndexTopk, EqualsReferenceAtLongContext) {
  Random random(6);
  const int64_t heads = on == On::kGpu ? 64 : 2;
  CacheFixture cache(FullKvSpec({4}), {{131071, 1}});
  FillExact(random, cache);
  ExactQueries exact(random, 1, heads, 128);
  ExpectReferencesChoice(on, exact.q.tensor(), exact.weights.tensor(), cache, 512);
}

// One token: rows that end at and after the sizes that a warp, a block and all blocks process at once. The newest row,
// which this step wrote, is the best or the worst.
DSV4_DEVICE_TEST(IndexTopk, EqualsReferenceForOneTokenAtEdges) {
  Random random(8);
  const int64_t heads = on == On::kGpu ? 64 : 3;
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16}) {
    for (const int64_t rows : {513, 527, 528, 529, 640, 641, 1025, 16896, 16897, 16913}) {
      CacheFixture cache(FullKvSpec({4}, KvDtype::kFp8, dtype), {{4 * rows - 1, 1}});
      FillExact(random, cache);
      const CompressorLayout& keys = cache.layout().layers[0].index;
      const RowSlot newest = EmittedRow(keys, cache.sequences()[0], rows - 1);
      std::vector<float> key(static_cast<size_t>(keys.dim), 4.0f);
      newest.rows.Write(newest.index, key.data());
      GuardBuffer<float> q({1, heads, 128}), weights({1, heads});
      for (float& v : q.span()) v = static_cast<float>(random.Index(3));
      for (float& v : weights.span()) v = (rows % 2 ? 0.25f : -0.25f) * static_cast<float>(1 + random.Index(2));
      ExpectReferencesChoice(on, q.tensor(), weights.tensor(), cache, 512);
      ForEachTopk(on, [&](const TopkFn& choose) {
        GuardBuffer<int32_t> got({1, 512});
        choose(q.tensor(), weights.tensor(), cache.View(0), got);
        EXPECT_EQ(got[511] == rows - 1, rows % 2 == 1) << rows;
      });
    }
  }
}

// More rows than a GPU's block keeps in shared memory, in blocks for many tokens.
DSV4_DEVICE_TEST(IndexTopk, EqualsReferenceForManyTokensAtLongContext) {
  Random random(7);
  const int64_t tokens = on == On::kGpu ? 130 : 7;
  CacheFixture cache(TinyKvSpec({4}), {{45000, tokens}});
  FillExact(random, cache);
  ExactQueries exact(random, tokens, 2, 32);
  ExpectReferencesChoice(on, exact.q.tensor(), exact.weights.tensor(), cache, 512);
}

// Roundings of a dot product of Di terms and a sum over heads: on a CPU Di / 8 + 5 + 2 heads; on a GPU in any order,
// and tensor cores truncate where float32 rounds, which doubles it.
double TopkTolerance(On on, int64_t di, int64_t heads) {
  return on == On::kGpu ? 2 * Gamma(di + 2 * heads) : Gamma(CeilDiv(di, 8) + 5 + 2 * heads);
}

// The exact score of a key, and the sum of the magnitudes of its terms.
std::pair<double, double> ExactScore(const float* q, const float* weights, int64_t heads,
                                     const std::vector<float>& key) {
  double score = 0, magnitude = 0;
  for (int64_t h = 0; h < heads; ++h) {
    double dot = 0, sum = 0;
    for (const float k : key) {
      const double product = static_cast<double>(*q++) * k;
      dot += product;
      sum += std::fabs(product);
    }
    score += weights[h] * std::max(dot, 0.0);
    magnitude += std::fabs(weights[h]) * sum;
  }
  return {score, magnitude};
}

// With rounding a pick may differ from the reference's only by a row whose exact score is within twice the error bound.
void ExpectLargestScores(On on, const CacheFixture& cache, GuardBuffer<float>& q, GuardBuffer<float>& weights,
                         int64_t heads, GuardBuffer<int32_t>& got) {
  const CompressorLayout& keys = cache.layout().layers[0].index;
  const CacheView view = cache.View(0);
  std::vector<float> key(static_cast<size_t>(keys.dim));
  for (int64_t token = 0; token < view.num_tokens; ++token) {
    const auto row = got.row(token);
    const int64_t k = static_cast<int64_t>(row.size()), visible = (view.positions[token] + 1) / 4;
    const int64_t count = std::min(visible, k);
    ASSERT_TRUE(std::is_sorted(row.begin(), row.begin() + count));
    for (int64_t i = count; i < k; ++i) EXPECT_EQ(row[static_cast<size_t>(i)], -1);
    if (visible <= k) {
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(row[static_cast<size_t>(i)], i);
      continue;
    }
    double lowest_in = HUGE_VAL, highest_out = -HUGE_VAL, error = 0;
    for (int64_t w = 0; w < visible; ++w) {
      const RowSlot slot = EmittedRow(keys, view.sequence(token), w);
      slot.rows.Read(slot.index, key.data());
      const auto [score, magnitude] = ExactScore(q.row(token).data(), weights.row(token).data(), heads, key);
      error = std::max(error, TopkTolerance(on, keys.dim, heads) * magnitude);
      if (std::binary_search(row.begin(), row.begin() + count, w)) {
        lowest_in = std::min(lowest_in, score);
      } else {
        highest_out = std::max(highest_out, score);
      }
    }
    ASSERT_GE(lowest_in, highest_out - 2 * error) << token;
  }
}

DSV4_DEVICE_TEST(IndexTopk, ChoosesTheLargestScores) {
  Random random(3);
  for (const TopkStep& step : TopkSteps(on)) {
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    const int64_t t = cache.num_tokens(), di = step.spec.index_head_dim;
    GuardBuffer<float> q({t, step.heads, di}, random.Normals(t * step.heads * di));
    GuardBuffer<float> weights({t, step.heads}, random.Normals(t * step.heads));
    if (on == On::kGpu && di % 32 == 0) {  // its tensor cores read queries in the form that this op writes
      RoundIndexQuery({}, {.q = q.tensor(), .dtype = step.spec.index_dtype});
    } else if (on == On::kGpu) {
      for (float& v : q.span()) RoundRow({.kind = RowFormat::Kind::kBf16, .dim = 1, .data_bytes = 2}, &v);
    }
    ForEachKernel(on, kIndexTopkKernels, IndexTopkOnGpu, [&](const auto run) {
      GuardBuffer<int32_t> got({t, step.k});
      IndexTopkArgs args{
          .q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = got.tensor()};
      run(TwoThreads(), args);
      ExpectLargestScores(on, cache, q, weights, step.heads, got);
      for (const ExecContext& ctx : ThreadCounts()) {  // same picks on any number of threads
        GuardBuffer<int32_t> again({t, step.k});
        args.topk_idxs = again.tensor();
        run(ctx, args);
        EXPECT_EQ(again.values(), got.values());
      }
    });
  }
}

// NaN scores rank below everything, -inf included; zeros of either sign tie; equal scores go by row. A key whose first
// channel is the score and one head of weight 1 or -1 give any score there is (F32 keys).
DSV4_DEVICE_TEST(IndexTopk, SelectsExactlyWhateverTheScores) {
  Random random(4);
  for (const int64_t context : {40, 4099, 16383, 16387, 33000, 141234, 1048575}) {
    for (const int64_t k : {1, 7, 512, 1024}) {
      if (context > 1000000 && k != 512) continue;
      if (on == On::kCpu && context > 5000) continue;  // enough for a CPU, which has one selection
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
        for (int64_t i = 1; i < keys.dim; ++i) q[i] = 0;  // avoids 0 * inf in the other channels
        SCOPED_TRACE(StrCat(context, " ", k, " ", kind));
        ExpectReferencesChoice(on, q.tensor(), weights.tensor(), cache, k);
      }
    }
  }
}

// A token alone in its step chooses the same as in a batch, scores included: scores that differ in the last bit would
// break ties differently.
DSV4_DEVICE_TEST(IndexTopk, ATokenAloneChoosesTheSame) {
  Random random(5);
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kF32}) {
    const bool gpu = on == On::kGpu;
    const KvSpec spec = gpu ? FullKvSpec({4}, KvDtype::kFp8, dtype) : TinyKvSpec({4}, KvDtype::kFp8, dtype);
    const int64_t t = gpu ? 64 : 30, heads = gpu ? 64 : 4, di = spec.index_head_dim, k = gpu ? 128 : 24;
    CacheFixture batch(spec, {{.cached = gpu ? 1600 : 600, .tokens = t}});
    batch.FillRandom(random);
    GuardBuffer<float> q({t, heads, di}, random.Normals(t * heads * di)),
        weights({t, heads}, random.Normals(t * heads));
    RoundIndexQuery({}, {.q = q.tensor(), .dtype = dtype});
    ForEachTopk(on, [&](const TopkFn& choose) {
      GuardBuffer<int32_t> all({t, k});
      choose(q.tensor(), weights.tensor(), batch.View(0), all);
      for (int64_t i = 0; i < t; ++i) {
        if (gpu && i > 1 && i != 31 && i != 63) continue;
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
        choose({q.row(i).data(), DType::kF32, {1, heads, di}}, {weights.row(i).data(), DType::kF32, {1, heads}}, one,
               got);
        EXPECT_TRUE(std::equal(got.span().begin(), got.span().end(), all.row(i).begin())) << i;
      }
    });
  }
}

// Tests that are fast under compute-sanitizer have names with Short: little work, each of a GPU's kernels once.
// One token; scores that are distinct whole numbers, or all equal. For equal scores only the radix selection decides.
void ChooseFromNumbers(On on, int64_t rows, bool alike) {
  CacheFixture cache(TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kF32), {{4 * rows - 1, 1}});
  const CompressorLayout& keys = cache.layout().layers[0].index;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> key(static_cast<size_t>(keys.dim), 0.0f);
    key[0] = alike ? 1.0f : static_cast<float>(row * 7919 % 65536);
    const RowSlot slot = EmittedRow(keys, cache.sequences()[0], row);
    slot.rows.Write(slot.index, key.data());
  }
  GuardBuffer<float> q({1, 1, keys.dim}, std::vector<float>(static_cast<size_t>(keys.dim), 1.0f)),
      weights({1, 1}, {1.0f});
  ExpectReferencesChoice(on, q.tensor(), weights.tensor(), cache, 100);
}

// The last `tokens` of a sequence of `rows` compressed rows, optionally after a sequence without a token.
void ChooseFromSums(On on, const KvSpec& spec, int64_t rows, int64_t tokens, int64_t heads, bool second = false) {
  Random random(9);
  std::vector<SequenceStep> sequences = {{4 * rows - tokens, tokens}};
  if (second) sequences.insert(sequences.begin(), {.cached = 90, .tokens = 0});
  CacheFixture cache(spec, sequences);
  FillExact(random, cache);
  ExactQueries exact(random, tokens, heads, spec.index_head_dim);
  ExpectReferencesChoice(on, exact.q.tensor(), exact.weights.tensor(), cache, 100);
}

// One block selects; if it cannot decide, the radix selection of one block does.
DSV4_DEVICE_TEST(IndexTopk, OneBlockChoosesShort) {
  ChooseFromNumbers(on, 700, /*alike=*/false);
  ChooseFromNumbers(on, 700, /*alike=*/true);
}

// The same by a cluster.
DSV4_DEVICE_TEST(IndexTopk, AClusterChoosesShort) {
  ChooseFromNumbers(on, 4500, /*alike=*/false);
  ChooseFromNumbers(on, 4500, /*alike=*/true);
}

// Scores of one token by tensor cores; the last row is this step's, or rows end within a warp's 16.
DSV4_DEVICE_TEST(IndexTopk, OneTokensScoresShort) {
  for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16}) {
    const KvSpec spec = FullKvSpec({4}, KvDtype::kFp8, dtype);
    for (const int64_t rows : {144, 151}) ChooseFromSums(on, spec, rows, 1, 64);
    ChooseFromSums(on, spec, 130, 1, 64, /*second=*/true);
  }
}

// The kernels of more tokens: clusters of eight and of four, a block, a block of fewer threads.
DSV4_DEVICE_TEST(IndexTopk, MoreTokensShort) {
  const KvSpec spec = TinyKvSpec({4}, KvDtype::kFp8, IndexDtype::kFp4), full = FullKvSpec({4});
  for (const int64_t tokens : {2, 17, 33, 129}) ChooseFromSums(on, spec, 150, tokens, 2);
  ChooseFromSums(on, full, 150, 2, 64);
  ChooseFromSums(on, full, 150, 129, 8);
}

}  // namespace
}  // namespace dsv4::test
