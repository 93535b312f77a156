// Memory for all weights of a device, and the sizes of its parts: for uploading and for making weights.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "layers/moe.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

// Each tensor takes a multiple of 256 bytes.
constexpr int64_t AlignedBytes(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// The kernels' copy of a layer's table of experts. Its last entry is the shared expert.
inline int64_t ExpertTableBytes(const MoeWeights& moe) {
  return static_cast<int64_t>((moe.experts.size() + 1) * sizeof(ExpertWeights));
}
inline std::vector<ExpertWeights> ExpertTable(const MoeWeights& moe) {
  std::vector<ExpertWeights> table = moe.experts;
  table.push_back(moe.shared);
  return table;
}

struct PlacedBytes {
  int64_t device = 0, host = 0;  // host: host memory that the device's kernels read
};

class WeightArena {
 public:
  [[nodiscard]] bool Allocate(Device& device, const PlacedBytes& bytes) {
    return device_.Allocate(device, bytes.device) && (bytes.host == 0 || host_.Allocate(device, bytes.host));
  }
  uint8_t* Take(int64_t bytes, bool on_host = false) {
    int64_t& taken = on_host ? host_taken_ : device_taken_;
    uint8_t* p = (on_host ? host_.data() : device_.data()) + taken;
    taken += AlignedBytes(bytes);
    return p;
  }
  int64_t taken() const { return device_taken_ + host_taken_; }

 private:
  DeviceBuffer device_;
  HostBuffer host_;
  int64_t device_taken_ = 0, host_taken_ = 0;
};

}  // namespace dsv4::deepseek_v4
