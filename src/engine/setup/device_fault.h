// A failure of devices that is asked for, to see what a server does then (DSV4_FAIL_DEVICE_AFTER, docs/env.md).
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv4/status.h"

namespace dsv4 {

struct DeviceFault {
  int64_t passes = 0;  // of the model, since the device was opened; 0: never
  int rank = -1;       // -1: all
  double late_s = 0;   // the rank comes so many seconds late to that pass; 0: it fails, and stays so
};

// "PASSES", "PASSES:RANK" or "PASSES:RANK:SECONDS" of one of `num_ranks` ranks; "": none. Error: kInvalidArgument.
Result<DeviceFault> ParseDeviceFault(std::string_view text, int num_ranks);

}  // namespace dsv4
