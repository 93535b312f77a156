// Memory for all weights on a device, and the sizes that fill it: what uploading and making weights share.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "layers/moe.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

// Each tensor takes whole units of 256 bytes.
constexpr int64_t AlignedBytes(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// The copy of a layer's table of experts that kernels read: the shared expert is its last.
inline int64_t ExpertTableBytes(const MoeWeights& moe) {
  return static_cast<int64_t>((moe.experts.size() + 1) * sizeof(ExpertWeights));
}
inline std::vector<ExpertWeights> ExpertTable(const MoeWeights& moe) {
  std::vector<ExpertWeights> table = moe.experts;
  table.push_back(moe.shared);
  return table;
}

class WeightArena {
 public:
  [[nodiscard]] bool Allocate(Device& device, int64_t bytes) { return memory_.Allocate(device, bytes); }
  uint8_t* Take(int64_t bytes) {
    uint8_t* p = memory_.data() + taken_;
    taken_ += AlignedBytes(bytes);
    return p;
  }
  int64_t taken() const { return taken_; }

 private:
  DeviceBuffer memory_;
  int64_t taken_ = 0;
};

}  // namespace dsv4::deepseek_v4
