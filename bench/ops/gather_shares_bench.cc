#include "ops/gather_shares/gather_shares.h"

#include <thread>

#include "support.h"

namespace dsv4::bench {
namespace {

// Two ranks with one thread each: T rows of a Flash model.
void GatherShares(benchmark::State& state) {
  const int64_t t = state.range(0), width = 4096;
  Exchange exchange(2, {.timeout_s = 0});
  Buffer y0({t, width}), y1({t, width});
  const auto gather = [](const ExecContext& ctx, const Tensor& rows) {
    GatherSharesArgs args;
    args.AddRows(ctx, rows);
    dsv4::GatherShares(ctx, args);
  };
  std::thread peer([&] {
    while (exchange.status().ok()) gather({.ranks = &exchange.view(1)}, y1.tensor());
  });
  for (auto _ : state) gather({.ranks = &exchange.view(0)}, y0.tensor());
  exchange.Fail(Internal("the benchmark is over"));
  peer.join();
  Report(state, t * width * 8);
}
BENCHMARK(GatherShares)->UseRealTime()->ArgName("T")->Arg(512)->Arg(2048);

}  // namespace
}  // namespace dsv4::bench
