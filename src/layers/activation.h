// The forms in which a value lies between two ops of a layer, and the memory that they take. Which one a value has is
// the plan's to say (plan.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "ops/activation_blocks.h"
#include "ops/query_blocks.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

enum class Form : uint8_t {
  kFloats,           // f32 [T, width]
  kBlocks,           // FP16 in blocks of 8 rows x 64 columns (ops/activation_blocks.cuh)
  kFloatsAndBlocks,  // both: some readers take the one, some the other
  kQueries,          // FP16 in blocks, with the sums of squares that a head's norm needs (ops/query_blocks.h)
  kSlots,            // f32 [T, A, width]: its reader adds them up, in order
  kRankParts,        // f32 [T, width], of every rank: their sum is the value (ops/sum_ranks)
  kPartsForBridge,   // the same, of few rows: the next bridge adds them up
  kPushedForBridge,  // the same, and on their way already
  kSlotsForBridge,   // kSlots of every rank: the next bridge adds up slots, then ranks
  kRankRows,         // f32 [T, width], of which a rank has its own rows (ops/rank_rows.h)
  kRowParts,         // kRankParts, of whose sum every rank needs its own rows
};

constexpr std::string_view NameOf(Form form) {
  switch (form) {
    case Form::kFloats:
      return "F32";
    case Form::kBlocks:
      return "FP16 blocks";
    case Form::kFloatsAndBlocks:
      return "F32 and FP16 blocks";
    case Form::kQueries:
      return "FP16 query blocks";
    case Form::kSlots:
      return "F32 per choice";
    case Form::kRankParts:
      return "F32 partials of ranks";
    case Form::kPartsForBridge:
      return "F32 partials of ranks, for the bridge";
    case Form::kPushedForBridge:
      return "F32 partials of ranks, pushed, for the bridge";
    case Form::kSlotsForBridge:
      return "F32 per choice, of ranks, for the bridge";
    case Form::kRankRows:
      return "F32 rows of ranks";
    case Form::kRowParts:
      return "F32 partials of ranks, own rows";
  }
  return "?";
}

// Bytes of T rows of `width` columns.
constexpr int64_t FloatBytes(int64_t t, int64_t width) { return t * width * 4; }

// A value of T rows in one of its forms.
struct Activation {
  Form form = Form::kFloats;
  Tensor x;                   // as the form says; where there are no floats, only its shape counts
  uint8_t* blocks = nullptr;  // kBlocks, kFloatsAndBlocks
  Activation() = default;
  Activation(const Tensor& floats) : x(floats) {}  // NOLINT: implicit
  Activation(Form f, const Tensor& floats, uint8_t* as_blocks) : form(f), x(floats), blocks(as_blocks) {}

  explicit operator bool() const { return static_cast<bool>(x); }
};

// Memory for a value, in any form for which it is large enough.
struct Room {
  uint8_t* data = nullptr;
  int64_t bytes = 0;

  Tensor Floats(int64_t t, int64_t width) const {
    DSV4_CHECK(FloatBytes(t, width) <= bytes);
    return {data, DType::kF32, {t, width}};
  }
  // Blocks of T x `width`, behind those of T x `before`.
  uint8_t* Blocks(int64_t t, int64_t width, int64_t before = 0) const {
    const int64_t begin = ActivationBlocksBytes(t, before);
    DSV4_CHECK(begin + ActivationBlocksBytes(t, width) <= bytes);
    return data + begin;
  }
  // kFloats or kBlocks.
  Activation As(Form form, int64_t t, int64_t width) const {
    if (form == Form::kFloats) return Floats(t, width);
    DSV4_CHECK(form == Form::kBlocks);
    return {form, {data, DType::kF32, {t, width}}, Blocks(t, width)};
  }
};

}  // namespace dsv4
