// The three matrices of an expert and their sizes in memory: for moving, streaming and visiting experts.
#pragma once

#include <cstdint>

#include "layers/moe.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

inline constexpr QuantTensor ExpertWeights::*kExpertMatrices[] = {&ExpertWeights::gate, &ExpertWeights::up,
                                                                  &ExpertWeights::down};

// Bytes of a matrix's codes and block scales in its current layout: tiles, or rows as in files.
inline int64_t PlacedCodeBytes(const QuantTensor& m) {
  return m.layout == WeightLayout::kTiles ? PackedCodeBytes(m) : m.rows * m.row_bytes();
}
inline int64_t PlacedScaleBytes(const QuantTensor& m) {
  if (m.block_scale == nullptr) return 0;
  return m.layout == WeightLayout::kTiles ? PackedScaleBytes(m) : FileScaleBytes(m);
}

// `e` at the addresses of `other`, which has the same sizes.
inline ExpertWeights InPlaceOf(ExpertWeights e, const ExpertWeights& other) {
  for (const auto m : kExpertMatrices) (e.*m).codes = (other.*m).codes, (e.*m).block_scale = (other.*m).block_scale;
  return e;
}

}  // namespace dsv4::deepseek_v4
