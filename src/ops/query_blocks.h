// Queries of long prompts in the form that GPU attention reads, written by their projection: FP16 numbers in blocks of
// 8 tokens x 64 channels, 1,024 bytes. Block (c, r), of channels 64 c .. and tokens 8 r .., has number c * CeilDiv(T,
// 8) + r. Token 8 r + i has 128 bytes of it, in which 16-byte chunk k is stored at chunk k ^ i. RoPE has been applied
// to the tail of every head. Attention applies the head norm to the scores; for that it needs the sum of the head's
// squares.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct QueryBlocks {
  uint8_t* blocks = nullptr;  // null: none
  float* squares = nullptr;   // [T, N Dh / 64]: sums over a token's rounded numbers in a block
  float unit = 1;             // the numbers are the projection times this power of two
  int64_t head_dim = 0;       // Dh, a multiple of 64
  Tensor cos_sin;             // f32 [T, 32, 2]
};

// Bytes of `blocks`, a multiple of 1,024.
constexpr int64_t QueryBlocksBytes(int64_t num_tokens, int64_t channels) {
  return (num_tokens + 7) / 8 * 8 * channels * 2;
}

// Bytes of `blocks` and, after them, `squares`.
constexpr int64_t QueryBytes(int64_t num_tokens, int64_t channels) {
  return QueryBlocksBytes(num_tokens, channels) + num_tokens * (channels / 64) * 4;
}

// The head norm cancels any scale of the projection, but FP16's range is limited. With NVFP4 the largest weight can be
// 6 x 448 times the global scale. `unit` makes sqrt(K) times that weight 2^7 to 2^8. Inputs that are RMS-normalised,
// times a norm's weights of up to W, then give at most sqrt(K) 2^8 W. The host does not know FP8's scales: 1.
inline float QueryUnit(const QuantTensor& w) {
  if (w.format != WeightFormat::kNvfp4) return 1;
  const double largest = std::sqrt(static_cast<double>(w.cols)) * 6 * 448 *
                         std::fabs(static_cast<double>(w.global_scale));
  if (!(largest >= 0x1p-80 && largest <= 0x1p80)) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return static_cast<float>(std::ldexp(1.0, 8 - exponent));
}

// The queries of the projection `w` in `memory`: QueryBytes, 1,024-byte aligned.
inline QueryBlocks QueryBlocksIn(uint8_t* memory, int64_t num_tokens, const QuantTensor& w, int64_t head_dim,
                                 const Tensor& cos_sin) {
  return {.blocks = memory,
          .squares = reinterpret_cast<float*>(memory + QueryBlocksBytes(num_tokens, w.rows)),
          .unit = QueryUnit(w),
          .head_dim = head_dim,
          .cos_sin = cos_sin};
}

}  // namespace dsv4
