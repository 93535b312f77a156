// Measures how long a decode step of one row waits for an all-reduce. Flash has two all-reduces per layer. For each,
// the kernel that computes a rank's partial sum and the bridge after it run from a CUDA graph as in a step, with the
// all-reduce and without it. The difference of the two times is the exposed time.
#pragma once

#include <functional>

#include "bench/cuda/ranks.cuh"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/linear/linear.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& args);
}  // namespace dsv4

namespace dsv4::bench {

// kAlone: no all-reduce. kBridge: the bridge sends and adds. kPushed: the kernel of the partial sum sends it.
enum class SumBy { kAlone, kBridge, kPushed };

// The tensors of an all-reduce in a GPU's memory, all zeros: times do not depend on values.
class SiteTensors {
 public:
  static constexpr int64_t kStreams = 4, kMixes = (2 + kStreams) * kStreams, kSlots = 7;

  explicit SiteTensors(int64_t cols) {
    const int64_t tiles = kWidth / kTileRows16 * (cols / kTileCols64);
    w_ = {.format = WeightFormat::kNvfp4, .rows = kWidth, .cols = cols, .codes = Zeros(tiles * 576)};
    w_.layout = WeightLayout::kTiles;
    fn_ = {.format = WeightFormat::kF32,
           .rows = kMixes,
           .cols = kStreams * kWidth,
           .codes = Zeros(kMixes * kStreams * kWidth * 4)};
    scratch_ = Zeros(kScratch);
    x_ = Floats({1, cols}), y_ = Floats({1, kWidth}), slots_ = Floats({1, kSlots, kWidth});
    bridge_ = {.streams = Floats({1, kStreams, kWidth}),
               .fn = fn_,
               .base = Floats({kMixes}),
               .scale = Floats({3}),
               .iters = 20,
               .eps = 1e-6f,
               .norm_eps = 1e-6f,
               .norm = Floats({kWidth}),
               .x = Floats({1, kWidth}),
               .post = Floats({1, kStreams}),
               .comb = Floats({1, kStreams, kStreams})};
  }
  ~SiteTensors() {
    for (void* p : memory_) cudaFree(p);
  }
  SiteTensors(const SiteTensors&) = delete;
  SiteTensors& operator=(const SiteTensors&) = delete;

  // One linear of the size of the output matrix, and the bridge after it, which adds up expert outputs or takes the
  // output of the linear.
  void Queue(const ExecContext& on, SumBy by, bool slots, int64_t site) {
    ExecContext ctx = on;
    ctx.scratch = {scratch_, kScratch};
    LinearArgs linear{.x = x_, .parts = {{w_, y_}}};
    if (by == SumBy::kPushed) linear.parts[0].push_site = site;
    LinearCuda(ctx, linear);
    HcBridgeArgs bridge = bridge_;
    bridge.y = slots ? slots_ : y_;
    bridge.sums_ranks = by != SumBy::kAlone;
    bridge.pushed = by == SumBy::kPushed;
    bridge.site = site;
    HcBridgeCuda(ctx, bridge);
  }

 private:
  static constexpr int64_t kScratch = 8 << 20;

  uint8_t* Zeros(int64_t bytes) {
    void* p;
    DSV4_BENCH_CHECK(cudaMalloc(&p, static_cast<size_t>(bytes)));
    DSV4_BENCH_CHECK(cudaMemset(p, 0, static_cast<size_t>(bytes)));
    memory_.push_back(p);
    return static_cast<uint8_t*>(p);
  }
  Tensor Floats(const Shape& shape) { return {Zeros(shape.num_elements() * 4), DType::kF32, shape}; }

  QuantTensor w_, fn_;
  Tensor x_, y_, slots_;
  HcBridgeArgs bridge_;
  uint8_t* scratch_ = nullptr;
  std::vector<void*> memory_;
};

// Returns the microseconds of a linear and its bridge on the slowest rank, in steps of 86 of them.
template <int Count>
double SiteUs(Ranks& ranks, std::vector<std::unique_ptr<SiteTensors>>& tensors, SumBy by, bool slots) {
  constexpr int kSitesOfAStep = 86;
  const auto queue = [&](int r, const ExecContext& ctx) {
    for (int site = 0; site < kSitesOfAStep; ++site) tensors[static_cast<size_t>(r)]->Queue(ctx, by, slots, site);
    if (by != SumBy::kAlone) AdvanceExchanges(ctx, kSitesOfAStep);
  };
  return RecordedMs<Count>(ranks, /*overlap=*/true, 200, queue) * 1000 / kSitesOfAStep;
}

template <int Count>
void MeasureExposed(Ranks& ranks) {
  std::vector<std::unique_ptr<SiteTensors>> tensors(Count);
  ranks.Run([&](int r) { tensors[static_cast<size_t>(r)] = std::make_unique<SiteTensors>(8192 / Count); });
  const auto print = [&](const char* site, const char* form, double alone, double us) {
    Line line("exchange_exposed");
    line.Add("gpus", Count).Add("site", site).Add("form", form).Add("us_alone", alone).Add("us", us);
    line.Add("us_exposed", us - alone);
    const std::string trouble = ranks.Trouble();
    if (!trouble.empty()) line.Add("error", trouble);
    line.Print();
  };
  for (int round = 0; round < 3; ++round) {
    const auto us = [&](SumBy by, bool slots) { return SiteUs<Count>(ranks, tensors, by, slots); };
    const double attention = us(SumBy::kAlone, false), experts = us(SumBy::kAlone, true);
    print("attention", "pushed by o_b", attention, us(SumBy::kPushed, false));
    print("attention", "by the bridge", attention, us(SumBy::kBridge, false));
    print("experts", "by the bridge", experts, us(SumBy::kBridge, true));
  }
  ranks.Run([&](int r) { tensors[static_cast<size_t>(r)].reset(); });
}

}  // namespace dsv4::bench
