#include "ops/sample/sample.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void Sample(benchmark::State& state) {
  constexpr int64_t kVocab = 129280;
  Buffer logits({1, kVocab}, 8);
  SampleRow row{
      .temperature = state.range(0) != 0 ? 1.0f : 0.0f, .top_p = state.range(0) == 2 ? 0.95f : 1.0f, .seed = 1};
  int32_t token = 0;
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::Sample(ctx, {.logits = logits.tensor(), .rows = &row, .tokens = {&token, DType::kI32, {1}}, .logprobs = {}});
  }
  Report(state, kVocab * 4);
}
BENCHMARK(Sample)->UseRealTime()->ArgName("greedy_drawn_topp")->Arg(0)->Arg(1)->Arg(2);

}  // namespace
}  // namespace dsv4::bench
