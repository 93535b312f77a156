// What `inspect --plan` prints of a forward pass.
#pragma once

#include <vector>

#include "device/exec_context.h"
#include "dsv4/inspect.h"
#include "model/deepseek_v4/pass/forward.h"

namespace dsv4::deepseek_v4 {

// Of every op, in order, with the layers and steps in which it runs so. The model's weights need not be there, nor need
// a GPU.
std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, const Model& model);

}  // namespace dsv4::deepseek_v4
