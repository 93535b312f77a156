#include "ops/accept_drafts/accept_drafts.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void AcceptDrafts(benchmark::State& state) {
  constexpr int64_t kRows = 4;
  const int64_t s = state.range(0), n = s * kRows;
  std::vector<int32_t> sampled(static_cast<size_t>(n), 7), tokens(static_cast<size_t>(n), 7),
      draft_tokens(static_cast<size_t>(s)), results(static_cast<size_t>(2 * n));
  std::vector<int64_t> positions(static_cast<size_t>(n)), draft_positions(static_cast<size_t>(s));
  std::vector<SequenceView> sequences(static_cast<size_t>(s)), draft_sequences(static_cast<size_t>(s));
  std::vector<SampleRow> rows(static_cast<size_t>(n)), draft_rows(static_cast<size_t>(s));
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::AcceptDrafts(ctx, {.rows_each = kRows,
                             .sampled = {sampled.data(), DType::kI32, {n}},
                             .tokens = {tokens.data(), DType::kI32, {n}},
                             .positions = {positions.data(), DType::kI64, {n}},
                             .sequences = sequences.data(),
                             .rows = rows.data(),
                             .draft_tokens = {draft_tokens.data(), DType::kI32, {s}},
                             .draft_positions = {draft_positions.data(), DType::kI64, {s}},
                             .draft_sequences = draft_sequences.data(),
                             .draft_rows = draft_rows.data(),
                             .results = {results.data(), DType::kI32, {s, 2 * kRows}}});
  }
  Report(state, n * 24);
}
BENCHMARK(AcceptDrafts)->UseRealTime()->Arg(1)->Arg(32);

}  // namespace
}  // namespace dsv4::bench
