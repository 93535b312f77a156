// Engines with several ranks on one CPU that must have the same bits.
#pragma once

#include <string>

#include "dsv4/engine.h"

namespace dsv4::test {

inline EngineOptions Invariant(EngineOptions options, int ranks) {
  options.device = ranks == 1 ? "cpu" : "cpu*" + std::to_string(ranks);
  options.num_threads = 2;
  options.ranks.invariant = true;
  return options;
}

}  // namespace dsv4::test
