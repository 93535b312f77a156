// Tensors in files that are no weights of the model: values that the model does not use, and signs of other formats.
#pragma once

#include <string_view>

namespace dsv4::deepseek_v4 {

// Whether the model never reads this tensor, whatever its value: RoPE frequencies, and scales for a quantised KV cache.
bool IsUnusedValue(std::string_view official_name);

// `X` for the name of a scale of matrix `X`; empty: it is none.
std::string_view MatrixOfScale(std::string_view official_name);

// A format that is refused.
struct ForeignFormat {
  std::string_view sign;  // the end of a name
  std::string_view what;
};
// The format that a name is a sign of; null: none. If a checkpoint has several signs, the first in the table decides.
const ForeignFormat* ForeignFormatOf(std::string_view official_name);

// The remedy for all of them.
inline constexpr std::string_view
    kUseAnother = "use the official checkpoint of this model, or one in ModelOpt's NVFP4 or in FP8 128x128";

// A row of a matrix that transformers 5.8 has cut into rows.
bool IsRowOfTransformers58(std::string_view official_name);

}  // namespace dsv4::deepseek_v4
