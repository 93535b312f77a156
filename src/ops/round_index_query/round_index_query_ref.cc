#include "ops/round_index_query/round_index_query.h"

#include "kv/row_format.h"
#include "ops/round_index_query/hadamard.h"

namespace dsv4 {

void RoundIndexQueryRef(const ExecContext& ctx, const RoundIndexQueryArgs& a) {
  if (a.dtype == IndexDtype::kF32) return;
  const int64_t di = a.q.dim(2);
  const RowFormat format = IndexKeyFormat(a.dtype, di);
  ParallelFor(ctx.pool, a.q.dim(0) * a.q.dim(1), /*grain=*/16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* head = a.q.f32() + r * di;
      if (a.dtype == IndexDtype::kFp4) Hadamard(head, di);
      RoundRow(format, head);
    }
  });
}

}  // namespace dsv4
