// Sizes of FP16 activations in blocks, the form that matrix products of many tokens read (activation_blocks.cuh). Host
// code.
#pragma once

#include <cstdint>

#include "tensor/quant_tensor.h"

namespace dsv4 {

// The bytes of T rows of `width` columns as FP16, in blocks of 8 tokens x 64 columns; a multiple of 1,024.
constexpr int64_t ActivationBlocksBytes(int64_t num_tokens, int64_t width) {
  return CeilDiv(num_tokens, 8) * CeilDiv(width, 64) * 1024;
}

}  // namespace dsv4
