#include "ops/place_drafts/place_drafts.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void PlaceDrafts(benchmark::State& state) {
  constexpr int64_t kRows = 4;
  const int64_t s = state.range(0), n = s * kRows;
  std::vector<int32_t> drafted(static_cast<size_t>(n - s), 7), tokens(static_cast<size_t>(n));
  std::vector<int64_t> positions(static_cast<size_t>(n), 41);
  const std::vector<KnownDraft> known(static_cast<size_t>(s));
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::PlaceDrafts(ctx, {.drafted = {drafted.data(), DType::kI32, {kRows - 1, s}},
                            .positions = {positions.data(), DType::kI64, {n}},
                            .known = known.data(),
                            .tokens = {tokens.data(), DType::kI32, {n}}});
  }
  Report(state, n * 8);
}
BENCHMARK(PlaceDrafts)->UseRealTime()->Arg(1)->Arg(32);

}  // namespace
}  // namespace dsv4::bench
