#include "ops/accept_drafts/accept_drafts.h"

#include <gtest/gtest.h>

#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

constexpr int64_t kAcceptIds = 16;  // of tokens

void AcceptDraftsOnGpu(const ExecContext&, const AcceptDraftsArgs& a) {
  Mirror gpu;
  const int64_t s = a.draft_tokens.dim(0), n = s * a.rows_each;
  const auto views = [&](SequenceView* at) {
    return static_cast<SequenceView*>(gpu.Out({at, DType::kU8, {s * static_cast<int64_t>(sizeof(SequenceView))}}).data);
  };
  std::vector<SampleRow> rows(a.rows, a.rows + n);
  // All rows share one table here.
  const Tensor counts = a.rows->output_count == nullptr ? Tensor{}
                                                        : gpu.Out({a.rows->output_count, DType::kBf16, {kAcceptIds}});
  for (SampleRow& row : rows) {
    if (row.output_count != nullptr) row.output_count = static_cast<uint16_t*>(counts.data);
  }
  const auto sample_rows = [&](SampleRow* at, int64_t count) {
    return gpu.Out({at, DType::kU8, {count * kSampleRowBytes}});
  };
  const Tensor draft_rows = sample_rows(a.draft_rows, s), step_rows = sample_rows(rows.data(), n);
  AcceptDrafts(gpu.ctx(), {.rows_each = a.rows_each,
                           .sampled = gpu.In(a.sampled),
                           .tokens = gpu.Out(a.tokens),
                           .positions = gpu.Out(a.positions),
                           .sequences = views(a.sequences),
                           .rows = static_cast<SampleRow*>(step_rows.data),
                           .draft_tokens = gpu.Out(a.draft_tokens),
                           .draft_positions = gpu.Out(a.draft_positions),
                           .draft_sequences = views(a.draft_sequences),
                           .draft_rows = static_cast<SampleRow*>(draft_rows.data),
                           .results = gpu.Out(a.results)});
  gpu.Finish();
  for (int64_t i = 0; i < n; ++i) a.rows[i].num_outputs = rows[static_cast<size_t>(i)].num_outputs;
}

// Three sequences of three rows and a padding row: none, one and both of the draft tokens are accepted. The one draw
// that is not a token ends a sequence's match.
struct AcceptCase {
  GuardBuffer<int32_t> sampled{{10}, {4, 5, 6, 8, 2, 9, 1, 3, -1, 7}}, tokens{{10}, {0, 5, 6, 0, 8, 9, 0, 1, 3, -4}},
      draft_tokens{{3}, {1, 1, 1}}, results{{3, 6}};
  GuardBuffer<int64_t> positions{{10}, {40, 41, 42, 7, 8, 9, 100, 101, 102, 0}}, draft_positions{{3}, {42, 9, 102}};
  std::vector<SequenceView> sequences = {{.start = 40, .begin = 0, .end = 3},
                                         {.start = 7, .begin = 3, .end = 6},
                                         {.start = 100, .begin = 6, .end = 9},
                                         {.start = 0, .begin = 9, .end = 10}},
                            draft_sequences = {{.start = 42}, {.start = 9}, {.start = 102}};
  std::vector<SampleRow> rows = std::vector<SampleRow>(9), draft_rows = std::vector<SampleRow>(3);
  AcceptCase() {
    for (size_t i = 0; i < 9; ++i) rows[i].num_outputs = 10 * (i / 3) + i % 3;
    for (size_t s = 0; s < 3; ++s) draft_rows[s].num_outputs = 10 * s + 2;
  }
  AcceptDraftsArgs args() {
    return {.rows_each = 3,
            .sampled = sampled.tensor(),
            .tokens = tokens.tensor(),
            .positions = positions.tensor(),
            .sequences = sequences.data(),
            .rows = rows.data(),
            .draft_tokens = draft_tokens.tensor(),
            .draft_positions = draft_positions.tensor(),
            .draft_sequences = draft_sequences.data(),
            .draft_rows = draft_rows.data(),
            .results = results.tensor()};
  }
};

DSV4_DEVICE_TEST(AcceptDrafts, GoesOnBehindWhatIsRight) {
  for (const auto& at : Places(on, AcceptDrafts, AcceptDraftsOnGpu)) {
    AcceptCase a;
    at.run(a.args());
    EXPECT_EQ(a.results.values(), (std::vector<int32_t>{0, 4, 5, 6, 5, 6,  //
                                                        1, 8, 2, 9, 8, 9,  //
                                                        2, 1, 3, -1, 1, 3}))
        << at.name;
    EXPECT_EQ(a.tokens.values(), (std::vector<int32_t>{4, 5, 6, 2, 8, 9, 0, 1, 3, -4})) << at.name;
    EXPECT_EQ(a.positions.values(), (std::vector<int64_t>{41, 42, 43, 9, 10, 11, 103, 104, 105, 0})) << at.name;
    EXPECT_EQ(a.draft_tokens.values(), (std::vector<int32_t>{4, 2, 0})) << at.name;
    EXPECT_EQ(a.draft_positions.values(), (std::vector<int64_t>{41, 9, 103})) << at.name;
    const int64_t starts[] = {41, 9, 103};
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(a.sequences[s].start, starts[s]) << at.name;
      EXPECT_EQ(a.draft_sequences[s].start, starts[s]) << at.name;
      EXPECT_EQ(a.draft_rows[s].num_outputs, 10 * s + s + 1) << at.name;
      for (size_t j = 0; j < 3; ++j) EXPECT_EQ(a.rows[3 * s + j].num_outputs, 10 * s + j + s + 1) << at.name;
    }
    EXPECT_EQ(a.sequences[3].start, 0) << at.name;
  }
}

// Counts exactly the accepted tokens.
DSV4_DEVICE_TEST(AcceptDrafts, CountsWhatIsTaken) {
  for (const auto& at : Places(on, AcceptDrafts, AcceptDraftsOnGpu)) {
    AcceptCase a;
    GuardBuffer<uint16_t> counts({kAcceptIds}, std::vector<uint16_t>(kAcceptIds, 3));
    counts[8] = 65535;
    for (SampleRow& row : a.rows) row.output_count = counts.data();
    at.run(a.args());
    std::vector<uint16_t> want(kAcceptIds, 3);
    for (const size_t id : {4, 2, 1, 3}) want[id] = 4;
    want[8] = 65535;
    EXPECT_EQ(counts.values(), want) << at.name;
  }
}

}  // namespace
}  // namespace dsv4::test
