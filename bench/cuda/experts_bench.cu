// Times the routed experts at the shapes of Flash and Pro, in NVFP4 or another format. Routing is uniform and random,
// and differs between launches.
// limit_us: a pure read of the bytes of the distinct experts as two launches (up and gate, down), launched the same
// way.
// limit_plain_us: the same without programmatic launch. No byte is then requested before the previous launch has ended,
// which is when the choice of experts is known.
#include <cstring>

#include "bench/cuda/harness.cuh"
#include "engine/setup/regimes.h"
#include "ops/experts/experts.h"
#include "ops/router/router.h"

namespace dsv4 {
void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& a);
void RouterCuda(const ExecContext& ctx, const RouterArgs& a);
}  // namespace dsv4

namespace dsv4::bench {
namespace {

constexpr int kSlots = 6, kLaunches = 24;

template <typename T>
T* Upload(Gpu& gpu, const std::vector<T>& v) {
  T* p = static_cast<T*>(gpu.Allocate(static_cast<int64_t>(v.size() * sizeof(T))));
  DSV4_BENCH_CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

struct Shapes {
  const char* name;
  int64_t experts, d, f;
};

class Experts {
 public:
  Experts(Gpu& gpu, const Shapes& s, WeightFormat format)
      : gate_(gpu, format, s.f, s.d, 1), down_(gpu, format, s.d, s.f, 1) {
    const int64_t up = Slot(gate_), down = Slot(down_);
    data_ = static_cast<uint8_t*>(gpu.Allocate(s.experts * (2 * up + down)));
    uint8_t* at = data_;
    const auto copy = [&](const Weights& from, int64_t slot) {
      QuantTensor w = from[0];
      DSV4_BENCH_CHECK(
          cudaMemcpyAsync(at, w.codes, static_cast<size_t>(slot), cudaMemcpyDeviceToDevice, StreamOf(gpu.ctx())));
      w.block_scale = at + (w.block_scale - w.codes);
      w.codes = at;
      at += slot;
      return w;
    };
    for (int64_t e = 0; e < s.experts; ++e) host_.push_back({copy(gate_, up), copy(gate_, up), copy(down_, down)});
    gpu.Synchronize();
    device_ = Upload(gpu, host_);
  }
  ~Experts() { cudaFree(data_), cudaFree(device_); }
  std::span<const ExpertMatrices> matrices() const { return {device_, host_.size()}; }
  const ExpertMatrices& first() const { return host_[0]; }
  int64_t up_bytes() const { return 2 * gate_.bytes(); }
  int64_t down_bytes() const { return down_.bytes(); }

 private:
  static int64_t Slot(const Weights& w) { return (w.bytes() + 511) / 256 * 256; }
  Weights gate_, down_;
  uint8_t* data_ = nullptr;
  std::vector<ExpertMatrices> host_;
  ExpertMatrices* device_ = nullptr;
};

void Run(Gpu& gpu, const Shapes& s, WeightFormat format, const std::vector<int64_t>& batches) {
  const Experts experts(gpu, s, format);
  for (const int64_t t : batches) {
    const int64_t pairs = t * kSlots;
    std::vector<int32_t*> ids;
    double distinct = 0;
    uint64_t seed = 12345 + static_cast<uint64_t>(t);
    for (int i = 0; i < kLaunches; ++i) {
      std::vector<int32_t> chosen;
      std::vector<bool> seen(static_cast<size_t>(s.experts));
      for (int64_t token = 0; token < t; ++token) {
        const size_t first = chosen.size();
        while (chosen.size() < first + kSlots) {
          seed = seed * 6364136223846793005ull + 1442695040888963407ull;
          const int32_t e = static_cast<int32_t>((seed >> 33) % static_cast<uint64_t>(s.experts));
          if (std::find(chosen.begin() + static_cast<std::ptrdiff_t>(first), chosen.end(), e) == chosen.end()) {
            chosen.push_back(e);
            seen[static_cast<size_t>(e)] = true;
          }
        }
      }
      distinct += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kLaunches;
      ids.push_back(Upload(gpu, chosen));
    }
    const Floats x(gpu, t * s.d, 0.5f), hidden(gpu, pairs * 2 * s.f), outputs(gpu, pairs * s.d), shared(gpu, t * s.d),
        y(gpu, t * s.d);
    float* weights = Upload(gpu, std::vector<float>(static_cast<size_t>(pairs), 0.25f));
    const auto run = [&](const ExecContext& ctx, int i) {
      ExpertsCuda(ctx, {.x = x.tensor({t, s.d}),
                        .experts = {ids[static_cast<size_t>(i)], DType::kI32, {t, kSlots}},
                        .weights = {weights, DType::kF32, {t, kSlots}},
                        .matrices = experts.matrices(),
                        .first = experts.first(),
                        .limit = 10,
                        .hidden = hidden.tensor({pairs, 2 * s.f}),
                        .outputs = outputs.tensor({pairs, s.d}),
                        .shared = shared.tensor({t, s.d}),
                        .y = y.tensor({t, s.d})});
    };
    const double few_us = gpu.MedianUs(kLaunches, run, t > 64 ? 5 : 11);  // the kernel of decode rows at every T
    gpu.ctx().regime = RegimeOfPrompt(t);
    const double us = t > 64 ? gpu.MedianUs(kLaunches, run) : few_us;
    gpu.ctx().regime = Regime::kDecode;
    const int64_t up = static_cast<int64_t>(distinct * static_cast<double>(experts.up_bytes())) / 256 * 256;
    const int64_t down = static_cast<int64_t>(distinct * static_cast<double>(experts.down_bytes())) / 256 * 256;
    const double limit = gpu.ReadLimitUs(up) + gpu.ReadLimitUs(down);
    gpu.ctx().overlap = false;
    const double plain = gpu.MedianUs(kLaunches, run), limit_plain = gpu.ReadLimitUs(up) + gpu.ReadLimitUs(down);
    gpu.ctx().overlap = true;
    Line("experts")
        .Add("model", s.name)
        .Add("format", std::string(NameOf(format)))
        .Add("T", t)
        .Add("distinct", distinct)
        .Add("MB", static_cast<double>(up + down) * 1e-6)
        .Add("us", us)
        .Add("few_tokens_kernel_us", few_us)
        .Add("limit_us", limit)
        .Add("over_limit", us / limit)
        .Add("plain_us", plain)
        .Add("limit_plain_us", limit_plain)
        .Add("over_limit_plain", us / limit_plain)
        .Add("GBps", static_cast<double>(up + down) * 1e-3 / us)
        .Print();
    for (int32_t* p : ids) cudaFree(p);
    cudaFree(weights);
  }
}

// Returns the numbers of a comma-separated list.
std::vector<int64_t> Numbers(const char* text) {
  std::vector<int64_t> numbers = {std::atoi(text)};
  while ((text = std::strchr(text, ',')) != nullptr) numbers.push_back(std::atoi(++text));
  return numbers;
}

void RunRouter(Gpu& gpu, const Shapes& s, int64_t t) {
  const Floats logits(gpu, t * s.experts), bias(gpu, s.experts, 0.1f), weights(gpu, t * kSlots);
  int32_t* ids = Upload(gpu, std::vector<int32_t>(static_cast<size_t>(t * kSlots)));
  const double us = gpu.MedianUs(200, [&](const ExecContext& ctx, int) {
    RouterCuda(ctx, {.logits = logits.tensor({t, s.experts}),
                     .bias = bias.tensor({s.experts}),
                     .scaling_factor = 1.5f,
                     .experts = {ids, DType::kI32, {t, kSlots}},
                     .weights = weights.tensor({t, kSlots})});
  });
  Line("router").Add("model", s.name).Add("T", t).Add("us", us).Print();
  cudaFree(ids);
}

}  // namespace
}  // namespace dsv4::bench

// experts_bench [flash|pro|flash-half [T,.. [FORMAT]]]
//   flash-half   the share of one rank of two
//   T            numbers of tokens; 0: several
//   FORMAT       as in the reports, or all
int main(int argc, char** argv) {
  using namespace dsv4::bench;
  Gpu gpu;
  constexpr Shapes kAll[] = {{"flash", 256, 4096, 2048}, {"pro", 384, 7168, 3072}, {"flash-half", 256, 4096, 1024}};
  for (const Shapes& s : kAll) {
    if (argc > 1 ? std::strcmp(argv[1], s.name) != 0 : &s == &kAll[2]) continue;
    for (const int64_t t : {1, 64}) RunRouter(gpu, s, t);
    const std::string format = argc > 3 ? argv[3] : "NVFP4";
    for (const dsv4::WeightFormat f : {dsv4::WeightFormat::kNvfp4, dsv4::WeightFormat::kNvfp4Tight,
                                       dsv4::WeightFormat::kMxfp4, dsv4::WeightFormat::kMxfp4Tight}) {
      if (format != "all" && format != dsv4::NameOf(f)) continue;
      if (argc > 2 && std::atoi(argv[2]) > 0) {
        Run(gpu, s, f, Numbers(argv[2]));
      } else {
        Run(gpu, s, f, {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024});
      }
    }
  }
}
