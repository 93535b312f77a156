// Ranks in tests: one thread each.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "device/exchange.h"
#include "device/exec_context.h"

namespace dsv4::test {

// Calls work(ctx, rank) on one thread per rank, with `ctx` and the rank's view of `exchange`. Returns when all have
// ended.
inline void RunRanks(Exchange& exchange, const std::function<void(const ExecContext& ctx, int rank)>& work,
                     const ExecContext& ctx = {}) {
  std::vector<std::thread> threads;
  for (int r = 0; r < exchange.count(); ++r) {
    threads.emplace_back([&, r] {
      ExecContext mine = ctx;
      mine.ranks = &exchange.view(r);
      work(mine, r);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace dsv4::test
