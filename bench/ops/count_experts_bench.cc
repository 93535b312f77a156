#include "ops/count_experts/count_experts.h"

#include "support.h"

namespace dsv4::bench {
namespace {

// Flash: 43 layers with 256 experts, 7 choices per token.
void CountExperts(benchmark::State& state) {
  const int64_t layers = 43, experts = 256, ids = state.range(0) * 7;
  std::vector<int32_t> chosen_ids(static_cast<size_t>(layers * ids));
  for (size_t i = 0; i < chosen_ids.size(); ++i) chosen_ids[i] = static_cast<int32_t>(i * 2654435761u % 257);
  std::vector<int64_t> chosen(static_cast<size_t>(layers * experts)), passes(chosen.size());
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::CountExperts(ctx, {.experts = chosen_ids.data(),
                             .layer_stride = ids,
                             .num_ids = ids,
                             .chosen = {chosen.data(), DType::kI64, {layers, experts}},
                             .passes = {passes.data(), DType::kI64, {layers, experts}}});
  }
  Report(state, layers * (ids * 4 + experts * 16));
}
BENCHMARK(CountExperts)->UseRealTime()->Arg(1)->Arg(512);

}  // namespace
}  // namespace dsv4::bench
