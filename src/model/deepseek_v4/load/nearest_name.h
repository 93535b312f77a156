// The tensor that a missing one may have been meant by.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/deepseek_v4/config/config.h"

namespace dsv4::deepseek_v4 {

// Returns the index of the one of `names` (official) that is most like `missing` and names no tensor of a model of
// `config`; -1: there is none. Tensors of a draft module that is not bound are not looked at.
int NearestUnknown(const Config& config, std::string_view missing, const std::vector<std::string_view>& names);

}  // namespace dsv4::deepseek_v4
