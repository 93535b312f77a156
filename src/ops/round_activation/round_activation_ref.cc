#include "ops/round_activation/round_activation.h"

#include <algorithm>

#include "tensor/codec/activation.h"

namespace dsv4 {

void RoundActivationRef(const ExecContext& ctx, const RoundActivationArgs& a) {
  const int64_t k = a.x.dim(1);
  ParallelFor(ctx.pool, a.x.dim(0), /*grain=*/4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x.f32() + t * k;
      float* y = a.y.f32() + t * k;
      switch (a.mode) {
        case ActivationDtype::kFp8:
          RoundToFp8Blocks(x, y, k, /*block=*/128);
          break;
        case ActivationDtype::kNvfp4:
          RoundToNvfp4(x, y, k);
          break;
        case ActivationDtype::kInt8:
        case ActivationDtype::kInt16:
        case ActivationDtype::kInt24:
          RoundToIntegerBlocks(x, y, k, IntegerBytes(a.mode));
          break;
        case ActivationDtype::kNative:
        case ActivationDtype::kF32:
          if (x != y) std::copy(x, x + k, y);
          break;
      }
    }
  });
}

}  // namespace dsv4
