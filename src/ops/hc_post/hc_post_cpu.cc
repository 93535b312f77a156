#include "ops/hc_post/hc_post.h"

#include <algorithm>

#include "ops/hc_pre/streams.h"
#include "ops/simd.h"
#include "tensor/quant_tensor.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kBlock = 512;  // channels per work item

// Channels [begin, end) of one token. The operations and their order are the reference's, so the bits are too.
void WriteChannels(const float* post, const float* comb, const float* y, int64_t h, int64_t d, int64_t begin,
                   int64_t end, float* streams) {
  const auto step = [&](int64_t i, const auto& load, const auto& store) {
    const Vec out = load(y + i);
    Vec old[kMaxStreams];
    for (int64_t j = 0; j < h; ++j) old[j] = load(streams + j * d + i);
    for (int64_t k = 0; k < h; ++k) {
      Vec sum = Mul(Set(post[k]), out);
      for (int64_t j = 0; j < h; ++j) sum = Add(sum, Mul(Set(comb[j * h + k]), old[j]));
      store(streams + k * d + i, sum);
    }
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    step(
        i, [](const float* p) { return Load(p); }, [](float* p, Vec x) { Store(p, x); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    step(
        i, [rest](const float* p) { return LoadPartial(p, rest); },
        [rest](float* p, Vec x) { StorePartial(p, x, rest); });
  }
}

}  // namespace

void HcPostCpu(const ExecContext& ctx, const HcPostArgs& a) {
  const int64_t h = a.streams.dim(1), d = a.streams.dim(2), blocks = CeilDiv(d, kBlock);
  ParallelFor(ctx.pool, a.streams.dim(0) * blocks, /*grain=*/16, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t t = item / blocks, first = item % blocks * kBlock;
      WriteChannels(a.post.f32() + t * h, a.comb.f32() + t * h * h, a.y.f32() + t * d, h, d, first,
                    std::min(d, first + kBlock), a.streams.f32() + t * h * d);
    }
  });
}

}  // namespace dsv4::DSV4_ISA
