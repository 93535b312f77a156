// Names of checkpoint tensors: maps every accepted spelling to the official one.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace dsv4::deepseek_v4 {

// Returns the official name of the tensor that a file calls `name`: without a `model.` prefix, other spellings of each
// component replaced, `.weight_scale_inv` as `.scale`. Stacked experts become `layers.N.ffn.experts.gate_up.weight` /
// `.down.weight`. The result is a view into `name` or, if it was rewritten, into `storage`. Unknown components are not
// changed.
std::string_view OfficialName(std::string_view name, std::deque<std::string>& storage);

// Names of draft modules (docs/dev/model.md). They are accepted if the module is not bound.
bool IsDraftName(std::string_view official_name);
// The embedding table or output matrix that a block of a draft module may have, or its scales. A copy of the model's is
// not bound.
bool IsCopyInDraft(std::string_view official_name);

}  // namespace dsv4::deepseek_v4
