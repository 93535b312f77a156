#include "ops/block_rows/block_rows.h"

#include "support.h"

namespace dsv4::bench {
namespace {

void BlockRows(benchmark::State& state) {
  const int64_t s = state.range(0), b = 5;
  const auto n = static_cast<size_t>(s * b);
  std::vector<int32_t> step_tokens(static_cast<size_t>(s), 7), tokens(n), sequence_of(n), by_place(n);
  std::vector<int64_t> step_positions(static_cast<size_t>(s), 41), positions(n), last(n);
  std::vector<SequenceView> sequences(static_cast<size_t>(s)), blocks(sequences);
  const auto view = [](auto& v, DType dtype) { return Tensor{v.data(), dtype, {static_cast<int64_t>(v.size())}}; };
  const auto i32 = [&](std::vector<int32_t>& v) { return view(v, DType::kI32); };
  const auto i64 = [&](std::vector<int64_t>& v) { return view(v, DType::kI64); };
  const ExecContext ctx = Context();
  for (auto _ : state) {
    dsv4::BlockRows(ctx, {.step_tokens = i32(step_tokens),
                          .step_positions = i64(step_positions),
                          .sequences = sequences.data(),
                          .block = b,
                          .filler = 3,
                          .tokens = i32(tokens),
                          .positions = i64(positions),
                          .last = i64(last),
                          .sequence_of = i32(sequence_of),
                          .by_place = i32(by_place),
                          .blocks = blocks.data()});
  }
  Report(state, s * b * 28);
}
BENCHMARK(BlockRows)->UseRealTime()->Arg(1)->Arg(64);

}  // namespace
}  // namespace dsv4::bench
