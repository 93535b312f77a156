#include "ops/q_prepare/q_prepare.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/round_index_query/round_index_query.h"
#include "ops/round_kv/round_kv.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

// The composition of the ops, each in the implementation that the context selects. It also runs on the CPU.
void QPrepareRef(const ExecContext& ctx, const QPrepareArgs& a) {
  if (a.q) {
    const Tensor rows = a.q.Reshaped({a.q.dim(0) * a.q.dim(1), a.q.dim(2)});
    RmsNorm(ctx, {.x = rows, .y = rows, .eps = a.norm_eps});
    Rope(ctx, {.x = a.q, .cos_sin = a.cos_sin});
  }
  if (a.kv) {
    RmsNorm(ctx, {.x = a.kv, .weight = a.kv_norm, .y = a.kv, .eps = a.norm_eps});
    Rope(ctx, {.x = a.kv.Reshaped({a.kv.dim(0), 1, a.kv.dim(1)}), .cos_sin = a.cos_sin});
    RoundKv(ctx, {.kv = a.kv, .format = a.cache.layer->window_row});
    if (a.append) WindowAppend(ctx, {.kv = a.kv, .cache = a.cache});
  }
  if (a.index_q) {
    Rope(ctx, {.x = a.index_q, .cos_sin = a.cos_sin});
    RoundIndexQuery(ctx, {.q = a.index_q, .dtype = a.index_dtype});
  }
  for (int i = 0; i < a.num_compress; ++i) Compress(ctx, a.compress[static_cast<size_t>(i)]);
}

}  // namespace dsv4
