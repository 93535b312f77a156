// Draft modules against float64 references, fed with the reference's own tokens (tolerances: docs/dev/numerics.md).
#include "model/deepseek_v4/pass/draft_fixture.h"

#include <algorithm>
#include <cmath>

#include "support/agreement.h"

namespace dsv4::test {
namespace {

constexpr float kTolerance = 2e-3f;
constexpr float kMargin = 0.005f;

// The largest difference of `row` and row `i` of a reference [.., V].
float RowDifference(const std::vector<float>& row, const Array& reference, int64_t i) {
  const auto v = static_cast<int64_t>(row.size());
  const auto* want = reference.f32.data() + i * v;
  float largest = 0;
  for (int64_t j = 0; j < v; ++j) {
    const float difference = std::fabs(row[static_cast<size_t>(j)] - want[j]);
    if (!(difference <= largest)) largest = difference;  // a NaN stays
  }
  return largest;
}

TEST(DraftMtp, EveryRowMatchesTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const std::vector<int32_t> ids = AllIds(dir);
  const Array want = ReferenceArray(dir, "mtp_logits"), want_ids = ReferenceArray(dir, "mtp_ids");
  const Array margin = ReferenceArray(dir, "mtp_margin");
  for (const bool reference_ops : {false, true}) {
    DraftModel model(dir, kExactModes, reference_ops);
    auto cache = model.NewCache();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      model.Forward(*cache, at, {&ids[i], 1});
      const auto drafted = model.Draft(*cache, at + 1, ids[i + 1], 0);
      EXPECT_LE(RowDifference(drafted.logits, want, at), kTolerance) << "row " << i;
      if (margin.f32[i] < kMargin) continue;
      EXPECT_EQ(ArgMax(drafted.logits.data(), model.vocab()), want_ids.i32[i]) << "row " << i;
    }
  }
}

// Drafts of one fixture at every position of its reference, with the drafted tokens as input.
void ExpectDrafts(const std::string& dir, int64_t places) {
  const std::vector<int32_t> ids = AllIds(dir);
  const Array at = ReferenceArray(dir, "draft_positions"), want = ReferenceArray(dir, "draft_logits");
  const Array want_ids = ReferenceArray(dir, "draft_ids"), margin = ReferenceArray(dir, "draft_margin");
  DraftModel model(dir, kExactModes);
  const bool dspark = model.model().config.draft.is_dspark();
  const Array confidence = dspark ? ReferenceArray(dir, "draft_confidence") : Array{};
  auto cache = model.NewCache();
  int64_t done = 0;
  for (size_t i = 0; i < at.i32.size(); ++i) {
    const int64_t p = at.i32[i];
    model.Forward(*cache, done, {ids.data() + done, static_cast<size_t>(p + 1 - done)});
    done = p + 1;
    int32_t token = ids[static_cast<size_t>(p + 1)];
    for (int64_t j = 0; j < places; ++j) {
      const int64_t row = static_cast<int64_t>(i) * places + j;
      const auto drafted = model.Draft(*cache, p + 1 + j, token, j);
      EXPECT_LE(RowDifference(drafted.logits, want, row), kTolerance) << "p " << p << ", place " << j;
      if (dspark) {
        EXPECT_NEAR(drafted.confidence[0], confidence.f32[static_cast<size_t>(row)], kTolerance) << "p " << p;
      }
      token = want_ids.i32[static_cast<size_t>(row)];
      if (margin.f32[static_cast<size_t>(row)] < kMargin) continue;
      EXPECT_EQ(ArgMax(drafted.logits.data(), model.vocab()), token) << "p " << p << ", place " << j;
    }
  }
}

TEST(DraftMtp, FedBackMatchesTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  ExpectDrafts(dir, 3);
}

TEST(DraftDspark, BlocksAndChainsMatchTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  ExpectDrafts(dir, 5);
}

TEST(DraftDspark, TheModelHandsOverTheMeansOfItsTargetLayers) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  const std::vector<int32_t> ids = AllIds(dir);
  const auto prompt = static_cast<int64_t>(ReferenceArray(dir, "prompt_ids").i32.size());
  const Array want = ReferenceArray(dir, "main_hidden");
  DraftModel model(dir, kExactModes);
  auto cache = model.NewCache();
  model.Forward(*cache, 0, {ids.data(), static_cast<size_t>(prompt + 16)});
  const Tensor& got = model.activations().draft.main_hidden;
  const int64_t width = got.dim(1);
  ASSERT_EQ(width, want.shape[1]);
  const std::vector<float> rows(got.f32() + (prompt - 16) * width, got.f32() + (prompt + 16) * width);
  EXPECT_LE(LargestDifference(rows, want.f32), kTolerance);
}

// With KV rows rounded as by default: the choices agree as often as the choices of the reference with the same
// rounding.
TEST(DraftMtp, RoundedRowsAgreeWithTheSimulatedReference) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const std::vector<int32_t> ids = AllIds(dir);
  const Array want = ReferenceArray(dir, "sim_mtp_logits");
  DraftModel model(dir, {});
  auto cache = model.NewCache();
  const int64_t v = model.vocab(), rows = want.shape[0];
  int64_t agreed = 0;
  for (int64_t i = 0; i < rows; ++i) {
    model.Forward(*cache, i, {&ids[static_cast<size_t>(i)], 1});
    const auto drafted = model.Draft(*cache, i + 1, ids[static_cast<size_t>(i + 1)], 0);
    agreed += ArgMax(drafted.logits.data(), v) == ArgMax(want.f32.data() + i * v, v);
  }
  EXPECT_GE(static_cast<double>(agreed), 0.97 * static_cast<double>(rows));
}

TEST(DraftDspark, RoundedRowsAgreeWithTheSimulatedReference) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  const std::vector<int32_t> ids = AllIds(dir);
  const Array at = ReferenceArray(dir, "draft_positions"), want = ReferenceArray(dir, "sim_draft_logits");
  DraftModel model(dir, {});
  const int64_t v = model.vocab(), count = want.shape[0], places = want.shape[1];
  auto cache = model.NewCache();
  int64_t done = 0, agreed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t p = at.i32[at.i32.size() - static_cast<size_t>(count - i)];
    model.Forward(*cache, done, {ids.data() + done, static_cast<size_t>(p + 1 - done)});
    done = p + 1;
    auto token = ids[static_cast<size_t>(p + 1)];
    for (int64_t j = 0; j < places; ++j) {
      const auto drafted = model.Draft(*cache, p + 1 + j, token, j);
      token = static_cast<int32_t>(ArgMax(want.f32.data() + (i * places + j) * v, v));
      agreed += ArgMax(drafted.logits.data(), v) == token;
    }
  }
  EXPECT_GE(static_cast<double>(agreed), 0.95 * static_cast<double>(count * places));
}

class DraftState : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, DraftState, testing::Values("flash-mtp", "flash-dspark"), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Drafts after `processed` tokens of `cache`: logits and confidences of three positions, with fixed tokens as input.
std::vector<float> ThreePlaces(DraftModel& model, SequenceCache& cache, int64_t processed) {
  std::vector<float> all;
  for (int64_t j = 0; j < 3; ++j) {
    const auto drafted = model.Draft(cache, processed + j, static_cast<int32_t>(17 + j), j);
    all.insert(all.end(), drafted.logits.begin(), drafted.logits.end());
    all.insert(all.end(), drafted.confidence.begin(), drafted.confidence.end());
  }
  return all;
}

TEST_P(DraftState, PromptsInPiecesGiveTheSameBits) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<int32_t> ids = AllIds(dir);
  DraftModel model(dir, {});
  auto whole = model.NewCache();
  model.ForwardAll(*whole, ids, ids.size());
  const std::vector<float> expected = ThreePlaces(model, *whole, static_cast<int64_t>(ids.size()));
  for (const size_t chunk : {1, 37, 128, 129}) {
    auto cache = model.NewCache();
    model.ForwardAll(*cache, ids, chunk);
    EXPECT_EQ(ThreePlaces(model, *cache, static_cast<int64_t>(ids.size())), expected) << "chunk " << chunk;
  }
}

// Steps of which only the first tokens are kept, around the window's end, with drafts in between.
TEST_P(DraftState, RejectedRowsLeaveNoTrace) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<int32_t> ids = AllIds(dir);
  DraftModel model(dir, {});
  auto clean = model.NewCache(), cache = model.NewCache();
  const int64_t start = 119;
  model.Forward(*clean, 0, {ids.data(), static_cast<size_t>(start)});
  model.Forward(*cache, 0, {ids.data(), static_cast<size_t>(start)});
  int64_t done = start;
  for (int64_t round = 0; done + 8 < static_cast<int64_t>(ids.size()); ++round) {
    const int64_t drafts = 1 + round % 7, kept = 1 + (round * 5) % (drafts + 1);
    std::vector<int32_t> tokens(ids.begin() + done, ids.begin() + done + kept);
    while (static_cast<int64_t>(tokens.size()) <= drafts) tokens.push_back(static_cast<int32_t>(3 + round % 5));
    model.Forward(*cache, done, tokens);
    for (int64_t i = 0; i < kept; ++i) model.Forward(*clean, done + i, {&ids[static_cast<size_t>(done + i)], 1});
    done += kept;
    EXPECT_EQ(ThreePlaces(model, *cache, done), ThreePlaces(model, *clean, done)) << "at " << done;
  }
}

TEST_P(DraftState, ABatchGivesEachSequenceItsOwnBits) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<int32_t> ids = AllIds(dir);
  DraftModel model(dir, {});
  const std::vector<int64_t> lengths = {131, 1, 40};
  std::vector<std::unique_ptr<SequenceCache>> caches;
  for (const int64_t n : lengths) {
    caches.push_back(model.NewCache());
    model.Forward(*caches.back(), 0, {ids.data(), static_cast<size_t>(n)});
  }
  for (int64_t j = 0; j < 3; ++j) {
    std::vector<DraftModel::Row> rows;
    for (size_t s = 0; s < lengths.size(); ++s)
      rows.push_back({caches[s].get(), lengths[s] + j, static_cast<int32_t>(17 + j)});
    const auto together = model.Draft(rows, j);
    if (j < 2) continue;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const std::vector<float> alone = ThreePlaces(model, *caches[s], lengths[s]);
      const auto v = static_cast<size_t>(model.vocab());
      const std::vector<float> row(together.logits.begin() + static_cast<int64_t>(s * v),
                                   together.logits.begin() + static_cast<int64_t>((s + 1) * v));
      EXPECT_EQ(row, std::vector<float>(alone.end() - 1 - model.vocab(), alone.end() - 1)) << "sequence " << s;
    }
  }
}

// A loaded draft module does not change the model's results.
TEST_P(DraftState, TheModelsLogitsAreThoseWithoutAModule) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<int32_t> ids = AllIds(dir);
  DraftModel model(dir, kExactModes);
  auto cache = model.NewCache();
  std::vector<float> logits;
  model.Forward(*cache, 0, ids, &logits);
  const auto engine = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(engine, nullptr);
  const std::vector<float> all = AllLogits(*engine, ids);
  EXPECT_EQ(logits, std::vector<float>(all.end() - model.vocab(), all.end()));
}

}  // namespace
}  // namespace dsv4::test
