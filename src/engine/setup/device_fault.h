// A simulated device failure, for tests of the server (DSV4_FAIL_DEVICE_AFTER, docs/dev/env.md).
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv4/status.h"

namespace dsv4 {

struct DeviceFault {
  int64_t passes = 0;  // passes of the model since the device was opened; 0: never
  int rank = -1;       // -1: all
  double late_s = 0;   // this rank is so late to that pass, in seconds; 0: it fails, permanently
};

// Parses "PASSES", "PASSES:RANK" or "PASSES:RANK:SECONDS" for `num_ranks` ranks; "": none. Error: kInvalidArgument.
Result<DeviceFault> ParseDeviceFault(std::string_view text, int num_ranks);

}  // namespace dsv4
