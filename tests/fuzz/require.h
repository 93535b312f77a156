// What a fuzzer asks of every answer.
#pragma once

#include <cstdlib>

namespace dsv4::fuzz {

// Ends the program, which libFuzzer takes for a finding.
inline void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace dsv4::fuzz
