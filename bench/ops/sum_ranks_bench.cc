#include "ops/sum_ranks/sum_ranks.h"

#include <thread>

#include "support.h"

namespace dsv4::bench {
namespace {

// Two ranks with one thread each: T rows of Flash's hidden size. Most of the time is the rendezvous.
void SumRanks(benchmark::State& state) {
  const int64_t t = state.range(0), d = 4096;
  Exchange exchange(2, {.timeout_s = 0});
  Buffer mine({t, d}), theirs({t, d});
  std::thread peer([&] {
    while (exchange.status().ok()) dsv4::SumRanks({.ranks = &exchange.view(1)}, {.y = theirs.tensor()});
  });
  for (auto _ : state) dsv4::SumRanks({.ranks = &exchange.view(0)}, {.y = mine.tensor()});
  exchange.Fail(Internal("the benchmark is over"));
  peer.join();
  Report(state, t * d * 16);
}
BENCHMARK(SumRanks)->UseRealTime()->ArgName("T")->Arg(1)->Arg(8)->Arg(64)->Arg(512);

}  // namespace
}  // namespace dsv4::bench
