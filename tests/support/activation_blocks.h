// The layout of activations for GPU matrix products of many tokens (ops/activation_blocks.cuh), on the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "support/input_parts.h"

namespace dsv4::test {

// Byte of column c of row r in a block of 8 rows x 64 columns.
inline size_t ActivationBlockByte(size_t r, size_t c) {
  const size_t chunk = 2 * (c / 4 % 4) + c % 4 / 2;
  return r * 128 + (chunk ^ r) * 16 + (2 * (c / 16) + c % 2) * 2;
}
inline size_t ActivationBlocksBytes(size_t rows, size_t cols) { return (rows + 7) / 8 * 1024 * (cols / 64); }
inline size_t ActivationBlocksByte(size_t rows, size_t r, size_t c) {
  return (c / 64 * ((rows + 7) / 8) + r / 8) * 1024 + ActivationBlockByte(r % 8, c % 64);
}

// Queries (ops/query_blocks.h): the same blocks with columns in order.
inline size_t QueryBlocksByte(size_t rows, size_t r, size_t c) {
  return (c / 64 * ((rows + 7) / 8) + r / 8) * 1024 + r % 8 * 128 + ((c % 64 / 8) ^ (r % 8)) * 16 + c % 8 * 2;
}

inline uint16_t HalfBits(float x) {
  const float h = RoundToHalf(x), m = std::fabs(h);
  const uint16_t sign = std::signbit(h) ? 0x8000 : 0;
  if (std::isnan(h)) return sign | 0x7E00;
  if (m < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint16_t>(m * 0x1p24f));
  const uint32_t bits = std::bit_cast<uint32_t>(m);
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

inline std::vector<uint16_t> AsHalves(std::span<const float> x) {
  std::vector<uint16_t> halves(x.size());
  for (size_t i = 0; i < x.size(); ++i) halves[i] = HalfBits(x[i]);
  return halves;
}

// Rows [rows, cols] as blocks; tokens that fill the last block are NaNs.
inline std::vector<uint8_t> AsBlocks(std::span<const float> x, size_t rows, size_t cols,
                                     size_t (&byte)(size_t, size_t, size_t) = ActivationBlocksByte) {
  std::vector<uint8_t> blocks(ActivationBlocksBytes(rows, cols), 0xFF);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint16_t h = HalfBits(x[r * cols + c]);
      uint8_t* at = blocks.data() + byte(rows, r, c);
      at[0] = static_cast<uint8_t>(h), at[1] = static_cast<uint8_t>(h >> 8);
    }
  }
  return blocks;
}

// Whether the blocks hold the rounded rows; the tokens that fill the last block may be anything.
inline ::testing::AssertionResult BlocksHold(std::span<const uint8_t> blocks, std::span<const float> x, size_t rows,
                                             size_t cols,
                                             size_t (&byte)(size_t, size_t, size_t) = ActivationBlocksByte) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const uint8_t* at = blocks.data() + byte(rows, r, c);
      const uint16_t got = static_cast<uint16_t>(at[0] | at[1] << 8), want = HalfBits(x[r * cols + c]);
      if (got != want) {
        return ::testing::AssertionFailure() << "row " << r << " column " << c << ": " << std::hex << got
                                             << ", expected " << want << " of " << x[r * cols + c];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace dsv4::test
