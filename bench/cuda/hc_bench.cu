// Times one mHC bridge: HcBridge against HcPost + HcPre + RmsNorm, in decode and prefill. As in a model, fn is read
// from memory; in decode streams, y and x stay in L2.
// limit_us: a pure read of fn (decode), or a copy of the bytes that the bridge reads and writes (prefill).
#include "bench/cuda/harness.cuh"
#include "engine/setup/regimes.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/rms_norm/rms_norm.h"

namespace dsv4 {
void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& args);
void HcPreCuda(const ExecContext& ctx, const HcPreArgs& args);
void HcPostCuda(const ExecContext& ctx, const HcPostArgs& args);
void RmsNormCuda(const ExecContext& ctx, const RmsNormArgs& args);
}  // namespace dsv4

namespace dsv4::bench {
namespace {

void Run(Gpu& gpu, const char* model, int64_t d, int64_t t) {
  const int64_t h = 4, n = 24;
  const int copies = Gpu::Copies(n * h * d * 4);
  Floats fn(gpu, copies * n * h * d, 0.02f), base(gpu, n), scale(gpu, 3, 0.1f), norm(gpu, d), streams(gpu, t * h * d),
      y(gpu, t * d), x(gpu, t * d), post(gpu, t * h), comb(gpu, t * h * h, 0.25f);
  const auto weight = [&](int i) {
    return QuantTensor{.format = WeightFormat::kF32,
                       .rows = n,
                       .cols = h * d,
                       .codes = reinterpret_cast<const uint8_t*>(fn.data() + static_cast<int64_t>(i) * n * h * d)};
  };
  const int launches = t > 128 ? 3 : copies;
  gpu.ctx().regime = RegimeOfPrompt(t);
  const double bridge = gpu.MedianUs(launches, [&](const ExecContext& ctx, int i) {
    HcBridgeCuda(ctx, {.streams = streams.tensor({t, h, d}),
                       .y = y.tensor({t, d}),
                       .fn = weight(i),
                       .base = base.tensor({n}),
                       .scale = scale.tensor({3}),
                       .iters = 20,
                       .eps = 1e-6f,
                       .norm_eps = 1e-6f,
                       .norm = norm.tensor({d}),
                       .x = x.tensor({t, d}),
                       .post = post.tensor({t, h}),
                       .comb = comb.tensor({t, h, h})});
  });
  const auto pre = [&](const ExecContext& ctx, int i) {
    HcPreCuda(ctx, {.streams = streams.tensor({t, h, d}),
                    .fn = weight(i),
                    .base = base.tensor({n}),
                    .scale = scale.tensor({3}),
                    .iters = 20,
                    .eps = 1e-6f,
                    .norm_eps = 1e-6f,
                    .x = x.tensor({t, d}),
                    .post = post.tensor({t, h}),
                    .comb = comb.tensor({t, h, h})});
  };
  const double only_pre = gpu.MedianUs(launches, pre);
  const double composed = gpu.MedianUs(launches, [&](const ExecContext& ctx, int i) {
    HcPostCuda(ctx, {.y = y.tensor({t, d}),
                     .post = post.tensor({t, h}),
                     .comb = comb.tensor({t, h, h}),
                     .streams = streams.tensor({t, h, d})});
    pre(ctx, i);
    RmsNormCuda(ctx, {.x = x.tensor({t, d}), .weight = norm.tensor({d}), .y = x.tensor({t, d}), .eps = 1e-6f});
  });
  double limit;
  if (t <= 128) {
    limit = gpu.ReadLimitUs(n * h * d * 4);
  } else {  // streams and y in, streams and x out
    const int64_t bytes = t * (h + 1) * d * 4;
    void* from = gpu.Allocate(bytes);
    void* to = gpu.Allocate(bytes);
    limit = gpu.MedianUs(3, [&](const ExecContext& ctx, int) {
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, StreamOf(ctx));
    });
    cudaFree(from);
    cudaFree(to);
  }
  Line("hc_bridge")
      .Add("model", model)
      .Add("T", t)
      .Add("us", bridge)
      .Add("limit_us", limit)
      .Add("post_pre_norm_us", composed)
      .Add("pre_us", only_pre)
      .Print();
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {  // no argument: every T; or one T
  dsv4::bench::Gpu gpu;
  const int64_t only = argc > 1 ? std::atoll(argv[1]) : 0;
  for (const int64_t t : {1, 2, 4, 8, 16, 32, 64, 128, 2048, 8192}) {
    if (only == 0 || only == t) dsv4::bench::Run(gpu, "flash", 4096, t);
  }
  for (const int64_t t : {1, 8, 32, 128, 2048, 8192}) {
    if (only == 0 || only == t) dsv4::bench::Run(gpu, "pro", 7168, t);
  }
}
