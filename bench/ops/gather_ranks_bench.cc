#include "ops/gather_ranks/gather_ranks.h"

#include <thread>

#include "support.h"

namespace dsv4::bench {
namespace {

// Two ranks with one thread each: R rows of the logits of a Flash model.
void GatherRanks(benchmark::State& state) {
  const int64_t r = state.range(0), width = 64640;
  Exchange exchange(2, {.timeout_s = 0});
  Buffer x0({r, width}), x1({r, width}), y0({r, 2 * width}), y1({r, 2 * width});
  std::thread peer([&] {
    while (exchange.status().ok())
      dsv4::GatherRanks({.ranks = &exchange.view(1)}, {.x = x1.tensor(), .y = y1.tensor()});
  });
  for (auto _ : state) dsv4::GatherRanks({.ranks = &exchange.view(0)}, {.x = x0.tensor(), .y = y0.tensor()});
  exchange.Fail(Internal("the benchmark is over"));
  peer.join();
  Report(state, r * width * 16);
}
BENCHMARK(GatherRanks)->UseRealTime()->ArgName("R")->Arg(1)->Arg(64);

}  // namespace
}  // namespace dsv4::bench
