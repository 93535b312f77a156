#include "kv/row_format.h"

#include <algorithm>
#include <cstring>

#include "tensor/codec/activation.h"
#include "tensor/codec/bf16.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

RowFormat KvRowFormat(KvDtype dtype, int64_t head_dim, int64_t rope_dim) {
  switch (dtype) {
    case KvDtype::kFp8: {
      const int64_t nope = head_dim - rope_dim;
      return {.kind = RowFormat::Kind::kFp8,
              .dim = head_dim,
              .rope_dim = rope_dim,
              .data_bytes = nope + 2 * rope_dim,
              .scale_bytes = CeilDiv(CeilDiv(nope, kKvScaleBlock), 8) * 8};
    }
    case KvDtype::kBf16:
      return {.kind = RowFormat::Kind::kBf16, .dim = head_dim, .data_bytes = 2 * head_dim};
    case KvDtype::kF32:
      return {.kind = RowFormat::Kind::kF32, .dim = head_dim, .data_bytes = 4 * head_dim};
  }
  return {};
}

RowFormat IndexKeyFormat(IndexDtype dtype, int64_t index_head_dim) {
  switch (dtype) {
    case IndexDtype::kFp4:
      return {.kind = RowFormat::Kind::kFp4,
              .dim = index_head_dim,
              .data_bytes = index_head_dim / 2,
              .scale_bytes = CeilDiv(index_head_dim, kIndexScaleBlock)};
    case IndexDtype::kBf16:
      return {.kind = RowFormat::Kind::kBf16, .dim = index_head_dim, .data_bytes = 2 * index_head_dim};
    case IndexDtype::kF32:
      return {.kind = RowFormat::Kind::kF32, .dim = index_head_dim, .data_bytes = 4 * index_head_dim};
  }
  return {};
}

void EncodeRow(const RowFormat& f, const float* x, uint8_t* data, uint8_t* scale) {
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim;
      for (int64_t b = 0; b < nope; b += kKvScaleBlock) {
        const int64_t end = std::min(b + kKvScaleBlock, nope);
        const int exponent = Fp8ScaleExponent(x + b, end - b);
        const float inverse = Exp2Int(-exponent);
        scale[b / kKvScaleBlock] = E8m0FromExponent(exponent);
        for (int64_t i = b; i < end; ++i) data[i] = F32ToE4m3(x[i] * inverse);
      }
      std::memset(scale + CeilDiv(nope, kKvScaleBlock), 0,
                  static_cast<size_t>(f.scale_bytes - CeilDiv(nope, kKvScaleBlock)));
      for (int64_t i = nope; i < f.dim; ++i) {
        const uint16_t bits = F32ToBf16(x[i]);
        std::memcpy(data + nope + 2 * (i - nope), &bits, 2);
      }
      return;
    }
    case RowFormat::Kind::kFp4:
      for (int64_t b = 0; b < f.dim; b += kIndexScaleBlock) {
        const int64_t end = std::min(b + kIndexScaleBlock, f.dim);
        const int exponent = Fp4ScaleExponent(x + b, end - b);
        const float s = Exp2Int(exponent);
        scale[b / kIndexScaleBlock] = E8m0FromExponent(exponent);
        for (int64_t i = b; i < end; i += 2) {
          data[i / 2] = static_cast<uint8_t>(F32ToE2m1(x[i] / s) | (F32ToE2m1(x[i + 1] / s) << 4));
        }
      }
      return;
    case RowFormat::Kind::kBf16:
      for (int64_t i = 0; i < f.dim; ++i) {
        const uint16_t bits = F32ToBf16(x[i]);
        std::memcpy(data + 2 * i, &bits, 2);
      }
      return;
    case RowFormat::Kind::kF32:
      std::memcpy(data, x, static_cast<size_t>(4 * f.dim));
      return;
  }
}

void DecodeRow(const RowFormat& f, const uint8_t* data, const uint8_t* scale, float* x) {
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim;
      for (int64_t i = 0; i < nope; ++i) x[i] = E4m3ToF32(data[i]) * E8m0ToF32(scale[i / kKvScaleBlock]);
      for (int64_t i = nope; i < f.dim; ++i) x[i] = Bf16ToF32(LoadUnaligned<uint16_t>(data + nope, i - nope));
      return;
    }
    case RowFormat::Kind::kFp4:
      for (int64_t i = 0; i < f.dim; ++i) x[i] = E2m1ToF32(GetNibble(data, i)) * E8m0ToF32(scale[i / kIndexScaleBlock]);
      return;
    case RowFormat::Kind::kBf16:
      for (int64_t i = 0; i < f.dim; ++i) x[i] = Bf16ToF32(LoadUnaligned<uint16_t>(data, i));
      return;
    case RowFormat::Kind::kF32:
      std::memcpy(x, data, static_cast<size_t>(4 * f.dim));
      return;
  }
}

void RoundRow(const RowFormat& f, float* x) {
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim;
      RoundToFp8Blocks(x, x, nope, kKvScaleBlock);
      for (int64_t i = nope; i < f.dim; ++i) x[i] = RoundToBf16(x[i]);
      return;
    }
    case RowFormat::Kind::kFp4:
      for (int64_t b = 0; b < f.dim; b += kIndexScaleBlock) {
        const int64_t end = std::min(b + kIndexScaleBlock, f.dim);
        const float s = Exp2Int(Fp4ScaleExponent(x + b, end - b));
        for (int64_t i = b; i < end; ++i) x[i] = E2m1ToF32(F32ToE2m1(x[i] / s)) * s;
      }
      return;
    case RowFormat::Kind::kBf16:
      for (int64_t i = 0; i < f.dim; ++i) x[i] = RoundToBf16(x[i]);
      return;
    case RowFormat::Kind::kF32:
      return;
  }
}

}  // namespace dsv4
