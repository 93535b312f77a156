#include "ops/linear/linear.h"
#include "ops/linears/linears.h"

namespace dsv4 {

// linear, one after the other: its reference or its kernel, as the context says.
void LinearsRef(const ExecContext& ctx, const LinearsArgs& a) {
  for (int i = 0; i < a.count; ++i) {
    const LinearPart& part = a.parts[static_cast<size_t>(i)];
    Linear(ctx, {.x = a.x, .w = part.w, .y = part.y, .activation = a.activation});
  }
}

}  // namespace dsv4
