#include "ops/index_topk/index_topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/index_topk/select.h"
#include "ops/kernels.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "tensor/quant_tensor.h"

DSV4_DECLARE_KERNELS(IndexTopkCpu, IndexTopkArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<IndexTopkArgs>> kIndexTopkKernels = DSV4_KERNELS(IndexTopkCpu);

// What SelectTopk promises, by a full sort.
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

// Long lists are cut several times on the way; rising scores all the time, falling ones once.
TEST(SelectTopk, TheOrderOfALongListDoesNotMatter) {
  Random random(5);
  std::vector<int32_t> scratch;
  for (const int64_t k : {1, 3, 64}) {
    for (const int64_t n : {16 * k, 16 * k + 1, int64_t{10000}}) {
      std::vector<float> rising(static_cast<size_t>(n)),
          nan(rising.size(), std::numeric_limits<float>::quiet_NaN());
      for (int64_t i = 0; i < n; ++i) rising[static_cast<size_t>(i)] = static_cast<float>(i / 3);
      const std::vector<float> falling(rising.rbegin(), rising.rend()), equal(rising.size(), 1.0f);
      std::vector<float> late = nan;  // the last of many NaN scores are numbers
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
      {odd, {{400, 3}, {90, 20}}, 4, 8},
  };
}

// Small whole numbers: every product and sum is exact in float32, ties are frequent, and every implementation must
// choose what the reference chooses.
TEST(IndexTopk, EqualsReferenceOnExactScores) {
  Random random(2);
  for (const Step& step : Steps()) {
    CacheFixture cache(step.spec, step.sequences);
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
    const int64_t t = cache.num_tokens();
    GuardBuffer<float> q({t, step.heads, keys.dim}), weights({t, step.heads});
    for (float& v : q.span()) v = static_cast<float>(random.Index(3) - 1);
    for (float& v : weights.span()) v = static_cast<float>(random.Index(5) - 2) * 0.25f;
    GuardBuffer<int32_t> want({t, step.k});
    IndexTopkArgs args{
        .q = q.tensor(), .weights = weights.tensor(), .cache = cache.View(0), .topk_idxs = want.tensor()};
    IndexTopk(Reference(), args);
    ForEachKernel(kIndexTopkKernels, [&](const auto run) {
      for (const ExecContext& ctx : ThreadCounts()) {
        GuardBuffer<int32_t> got({t, step.k});
        args.topk_idxs = got.tensor();
        run(ctx, args);
        EXPECT_EQ(got.values(), want.values());
      }
    });
  }
}

// With rounding a pick may differ from the reference's only by a row whose exact score lies within twice the error
// bound of a dot product and a head sum: gamma_n sum |weight| sum |q| |key|, n = Di / 8 + 5 + 2 heads.
TEST(IndexTopk, ChoosesTheLargestScores) {
  Random random(3);
  for (const Step& step : Steps()) {
    CacheFixture cache(step.spec, step.sequences);
    cache.FillRandom(random);
    const CompressorLayout& keys = cache.layout().layers[0].index;
    const int64_t t = cache.num_tokens(), di = keys.dim;
    GuardBuffer<float> q({t, step.heads, di}, random.Normals(t * step.heads * di));
    GuardBuffer<float> weights({t, step.heads}, random.Normals(t * step.heads));
    ForEachKernel(kIndexTopkKernels, [&](const auto run) {
      GuardBuffer<int32_t> got({t, step.k});
      const CacheView view = cache.View(0);
      run(TwoThreads(),
          {.q = q.tensor(), .weights = weights.tensor(), .cache = view, .topk_idxs = got.tensor()});
      std::vector<float> key(static_cast<size_t>(di));
      for (int64_t token = 0; token < t; ++token) {
        const int64_t visible = (view.positions[token] + 1) / 4, count = std::min(visible, step.k);
        double lowest_in = HUGE_VAL, highest_out = -HUGE_VAL, error = 0;
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
          error = std::max(error, Gamma(CeilDiv(di, 8) + 5 + 2 * step.heads) * magnitude);
          const auto row = got.row(token);
          if (std::find(row.begin(), row.begin() + count, w) != row.begin() + count) {
            lowest_in = std::min(lowest_in, score);
          } else {
            highest_out = std::max(highest_out, score);
          }
        }
        EXPECT_GE(lowest_in, highest_out - 2 * error) << token;
        const auto row = got.row(token);
        EXPECT_TRUE(std::is_sorted(row.begin(), row.begin() + count));
        for (int64_t i = count; i < step.k; ++i) EXPECT_EQ(row[static_cast<size_t>(i)], -1);
      }
      for (const ExecContext& ctx : ThreadCounts()) {  // same picks on any number of threads
        GuardBuffer<int32_t> again({t, step.k});
        run(ctx, {.q = q.tensor(), .weights = weights.tensor(), .cache = view, .topk_idxs = again.tensor()});
        EXPECT_EQ(again.values(), got.values());
      }
    });
  }
}

// A token alone in its step chooses what it chooses in a batch, scores included: scores that differ in the last bit
// would break ties differently.
TEST(IndexTopk, ATokenAloneChoosesTheSame) {
  Random random(4);
  const KvSpec spec = TinyKvSpec({4});
  CacheFixture batch(spec, {{.cached = 600, .tokens = 30}});
  batch.FillRandom(random);
  const int64_t t = 30, heads = 4, di = spec.index_head_dim, k = 24;
  GuardBuffer<float> q({t, heads, di}, random.Normals(t * heads * di)),
      weights({t, heads}, random.Normals(t * heads));
  ForEachKernel(kIndexTopkKernels, [&](const auto run) {
    GuardBuffer<int32_t> all({t, k});
    run({}, {.q = q.tensor(), .weights = weights.tensor(), .cache = batch.View(0), .topk_idxs = all.tensor()});
    for (int64_t i = 0; i < t; ++i) {
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
      for (const ExecContext& ctx : ThreadCounts()) {
        GuardBuffer<int32_t> got({1, k});
        run(ctx, {.q = {q.row(i).data(), DType::kF32, {1, heads, di}},
                  .weights = {weights.row(i).data(), DType::kF32, {1, heads}},
                  .cache = one,
                  .topk_idxs = got.tensor()});
        EXPECT_TRUE(std::equal(got.span().begin(), got.span().end(), all.row(i).begin())) << i;
      }
    }
  });
}

}  // namespace
}  // namespace dsv4::test
