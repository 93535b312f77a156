// What ExpandKernel (expand_cuda.cu) takes.
#pragma once

#include "tensor/quant_tensor.h"

namespace dsv4::q_prepare {

inline constexpr int kHead = 512, kIndexHead = 128;  // channels
inline constexpr int64_t kMaxCols = 4096, kMostTokens = 4;
inline constexpr WeightFormat kFormat = WeightFormat::kNvfp4;

// Of one launch: two a head, and for the token's own row and the compressors.
constexpr int64_t NumBlocks(int64_t heads, int64_t num_compress) {
  return 2 * heads + CeilDiv(1 + num_compress, 2) * 2;
}

}  // namespace dsv4::q_prepare
