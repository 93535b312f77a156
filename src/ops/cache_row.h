// A vectorised DecodeRow of kv/row_format.h, with equal values (the sign of an E2M1 zero may be lost). Writes the row
// to x[0, dim) and nothing after it.
#pragma once

#include "kv/layout.h"
#include "ops/simd.h"
#include "tensor/codec/bf16.h"
#include "tensor/codec/fp8.h"

namespace dsv4::DSV4_ISA {

DSV4_INLINE void DecodeBf16(const uint8_t* data, int64_t n, float* x) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) Store(x + i, LoadBf16(data + 2 * i));
  for (int64_t i = whole; i < n; ++i) x[i] = Bf16ToF32(LoadUnaligned<uint16_t>(data, i));
}

inline void DecodeSlot(const RowSlot& slot, float* x) {
  const RowFormat& f = slot.rows.format;
  const uint8_t* data = slot.rows.data(slot.index);
  const uint8_t* scale = slot.rows.scale(slot.index);
  switch (f.kind) {
    case RowFormat::Kind::kFp8: {
      const int64_t nope = f.dim - f.rope_dim, whole = nope / kLanes * kLanes;
      const auto scaled = [&](int64_t i, Vec code) {
        return Mul(Mul(code, Set(kE4m3Unit)), Set(kE8m0Table[scale[i / kKvScaleBlock]]));
      };
      int64_t i = 0;
      for (; i + 2 * kLanes <= whole; i += 2 * kLanes) {
        Vec codes[2];
        LoadE4m3(data + i, codes);
        for (int64_t v = 0; v < 2; ++v) Store(x + i + v * kLanes, scaled(i, codes[v]));
      }
      for (; i < whole; i += kLanes) Store(x + i, scaled(i, LoadE4m3(data + i)));
      for (; i < nope; ++i) x[i] = kE4m3Table[data[i]] * kE8m0Table[scale[i / kKvScaleBlock]];
      DecodeBf16(data + nope, f.rope_dim, x + nope);
      return;
    }
    case RowFormat::Kind::kFp4: {
      int64_t i = 0;
      for (; i + kIndexScaleBlock <= f.dim; i += kIndexScaleBlock) {
        const Vec factor = Set(kE8m0ScaleOfE2m1[scale[i / kIndexScaleBlock]]);
        Vec codes[kIndexScaleBlock / kLanes];
        LoadE2m1(data + i / 2, codes);
        for (int64_t v = 0; v < kIndexScaleBlock / kLanes; ++v) Store(x + i + v * kLanes, Mul(codes[v], factor));
      }
      for (; i < f.dim; ++i) {
        x[i] = E2m1ToF32(GetNibble(data, i)) * kE8m0Table[scale[i / kIndexScaleBlock]];
      }
      return;
    }
    case RowFormat::Kind::kBf16:
      DecodeBf16(data, f.dim, x);
      return;
    case RowFormat::Kind::kF32:
      std::memcpy(x, data, static_cast<size_t>(4 * f.dim));
      return;
  }
}

}  // namespace dsv4::DSV4_ISA
