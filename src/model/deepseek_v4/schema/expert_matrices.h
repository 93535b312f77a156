// The three matrices of an expert, and where they lie: what moving, streaming and visiting them share.
#pragma once

#include <cstdint>

#include "layers/moe.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

inline constexpr QuantTensor ExpertWeights::*kExpertMatrices[] = {&ExpertWeights::gate, &ExpertWeights::up,
                                                                  &ExpertWeights::down};

// Bytes of a matrix's codes, and of its block scales, as they lie: in tiles, or in rows as files have them.
inline int64_t PlacedCodeBytes(const QuantTensor& m) {
  return m.layout == WeightLayout::kTiles ? PackedCodeBytes(m) : m.rows * m.row_bytes();
}
inline int64_t PlacedScaleBytes(const QuantTensor& m) {
  if (m.block_scale == nullptr) return 0;
  return m.layout == WeightLayout::kTiles ? PackedScaleBytes(m) : FileScaleBytes(m);
}

// `e` where `other`, which is sized alike, lies.
inline ExpertWeights InPlaceOf(ExpertWeights e, const ExpertWeights& other) {
  for (const auto m : kExpertMatrices) (e.*m).codes = (other.*m).codes, (e.*m).block_scale = (other.*m).block_scale;
  return e;
}

}  // namespace dsv4::deepseek_v4
