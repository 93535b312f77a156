// Names of checkpoint tensors: every accepted spelling, brought to the official one.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace dsv4::deepseek_v4 {

// The official name of the tensor that a file calls `name`: without a `model.` prefix, transformers' names replaced,
// `.weight_scale_inv` as `.scale`. Stacked experts become `layers.N.ffn.experts.gate_up.weight` / `.down.weight`.
// A view into `name` or, when it had to be rewritten, into `storage`. Unknown names pass unchanged.
std::string_view OfficialName(std::string_view name, std::deque<std::string>& storage);

// Draft modules (docs/dev/model.md): accepted where they are not bound.
bool IsDraftName(std::string_view official_name);
// The copy of the model's embedding or output matrix that an MTP block may come with: never bound.
bool IsCopyInDraft(std::string_view official_name);

// Belongs to the compressed-tensors layout, whose global scale is a reciprocal.
bool IsCompressedTensorsName(std::string_view official_name);

}  // namespace dsv4::deepseek_v4
