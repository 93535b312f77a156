#include "ops/embed/embed.h"

#include <algorithm>

#include "ops/idle_row.h"
#include "tensor/codec/weight.h"

namespace dsv4 {

void EmbedRef(const ExecContext& ctx, const EmbedArgs& a) {
  const int64_t num_streams = a.streams.dim(1), d = a.streams.dim(2);
  const int32_t* tokens = a.tokens.i32();
  float* out = a.streams.f32();
  ParallelFor(ctx.pool, a.tokens.dim(0), /*grain=*/16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (tokens[t] == kIdleToken) {
        std::fill_n(out + t * num_streams * d, num_streams * d, 0.0f);
        continue;
      }
      DSV4_CHECK(tokens[t] >= 0 && tokens[t] < a.table.rows, "token ", tokens[t]);
      for (int64_t h = 0; h < num_streams; ++h) {
        for (int64_t i = 0; i < d; ++i) out[(t * num_streams + h) * d + i] = CodeValue(a.table, tokens[t], i);
      }
    }
  });
}

}  // namespace dsv4
