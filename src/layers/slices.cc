#include "layers/slices.h"

#include "base/check.h"
#include "ops/stream_add/stream_add.h"

namespace dsv4 {

namespace {

using MakeSlice = std::function<void(int k, const Tensor& part)>;

// Of slices [first, first + count).
void SumSlicesFrom(const ExecContext& ctx, int first, int count, const Tensor& sums, const Tensor& y,
                   const MakeSlice& make) {
  if (count == 1) return make(first, y);
  const int half = count / 2;
  const int64_t t = y.dim(0), d = y.dim(1);
  const Tensor right{sums.f32() + SliceLevels(half) * sums.dim(1) * d, DType::kF32, {t, d}};
  SumSlicesFrom(ctx, first, half, sums, y, make);
  SumSlicesFrom(ctx, first + half, half, sums, right, make);
  StreamAdd(ctx, {.y = right, .streams = y.Reshaped({t, 1, d})});
}

}  // namespace

void SumSlices(const ExecContext& ctx, int count, const Tensor& sums, const Tensor& y, const MakeSlice& make) {
  DSV4_CHECK(count > 0 && (count & (count - 1)) == 0, count, " slices");
  if (count > 1) DSV4_CHECK(sums.dim(0) >= SliceLevels(count) && sums.dim(1) >= y.dim(0) && sums.dim(2) == y.dim(1));
  SumSlicesFrom(ctx, 0, count, sums, y, make);
}

}  // namespace dsv4
