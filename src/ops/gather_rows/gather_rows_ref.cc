#include "ops/gather_rows/gather_rows.h"

#include <algorithm>

namespace dsv4 {

void GatherRowsRef(const ExecContext&, const GatherRowsArgs& a) {
  const int64_t num_rows = a.rows.dim(0);
  if (num_rows == 0) return;
  const int64_t width = a.out.num_elements() / num_rows;
  const float* x = a.x.f32();
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t from = a.rows.i32()[r];
    DSV4_CHECK(from >= 0 && from < a.x.dim(0), "row ", from);
    std::copy(x + from * width, x + (from + 1) * width, a.out.f32() + r * width);
  }
}

}  // namespace dsv4
