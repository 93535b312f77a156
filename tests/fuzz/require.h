// The check of a fuzzer.
#pragma once

#include <cstdlib>

namespace dsv4::fuzz {

// Ends the program if `condition` is false; libFuzzer reports that as a finding.
inline void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace dsv4::fuzz
