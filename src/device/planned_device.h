// The properties of a device that a memory plan needs. The device need not be present.
#pragma once

#include <cstdint>
#include <string>

#include "device/cuda.h"
#include "device/device.h"

namespace dsv4 {

struct PlannedDevice {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;
  int64_t scratch_bytes = 0;  // for ops

  static PlannedDevice Of(const Device& device) {
    return {.kind = device.kind(), .name = device.name(), .scratch_bytes = device.scratch_bytes()};
  }
  static PlannedDevice AnyGpu() {
    return {.kind = DeviceKind::kCuda, .name = "a GPU", .scratch_bytes = kGpuScratchBytes};
  }
};

}  // namespace dsv4
