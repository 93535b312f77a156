// LinearsCuda for the groups of projections of a layer that share their input, against a pure read of the same bytes.
//   linears_bench [T ...]      default 1 8
#include "bench/cuda/harness.cuh"
#include "engine/regimes.h"
#include "ops/linears/linears.h"

namespace dsv4 {
void LinearsCuda(const ExecContext& ctx, const LinearsArgs& args);
}

namespace dsv4::bench {
namespace {

struct Part {
  WeightFormat format;
  int64_t rows;
};
struct Case {
  const char* name;
  int64_t cols;
  std::vector<Part> parts;
};

constexpr WeightFormat kN = WeightFormat::kNvfp4, kF = WeightFormat::kFp8Block, kB = WeightFormat::kBf16;

std::vector<Case> Cases() {
  // q_a | kv | compressor kv, gate | index kv, gate | index weights; q_b | index q_b; router | shared gate, up.
  return {{"flash in csa nvfp4", 4096, {{kN, 1024}, {kN, 512}, {kN, 1024}, {kN, 1024}, {kN, 256}, {kN, 256}, {kN, 64}}},
          {"flash in csa fp8+bf16", 4096, {{kF, 1024}, {kF, 512}, {kB, 1024}, {kB, 1024}, {kB, 256}, {kB, 256}, {kB, 64}}},
          {"flash in hca nvfp4", 4096, {{kN, 1024}, {kN, 512}, {kN, 512}, {kN, 512}}},
          {"flash q_b + index nvfp4", 1024, {{kN, 32768}, {kN, 8192}}},
          {"flash router + shared nvfp4", 4096, {{kB, 256}, {kN, 2048}, {kN, 2048}}},
          {"flash router + shared fp8", 4096, {{kB, 256}, {kF, 2048}, {kF, 2048}}},
          {"pro in csa nvfp4", 7168, {{kN, 1536}, {kN, 512}, {kN, 1024}, {kN, 1024}, {kN, 256}, {kN, 256}, {kN, 64}}},
          {"pro q_b + index nvfp4", 1536, {{kN, 65536}, {kN, 8192}}},
          {"pro router + shared nvfp4", 7168, {{kB, 384}, {kN, 3072}, {kN, 3072}}}};
}

void Run(const std::vector<int64_t>& token_counts) {
  Gpu gpu;
  for (const Case& c : Cases()) {
    std::vector<std::unique_ptr<Weights>> weights;
    int64_t bytes = 0;
    int copies = 3;
    for (const Part& part : c.parts) {
      bytes += PackedCodeBytes({.format = part.format, .rows = part.rows, .cols = c.cols}) +
               PackedScaleBytes({.format = part.format, .rows = part.rows, .cols = c.cols});
    }
    copies = Gpu::Copies(bytes);
    for (const Part& part : c.parts) weights.push_back(std::make_unique<Weights>(gpu, part.format, part.rows, c.cols, copies));
    for (const int64_t t : token_counts) {
      Floats x(gpu, t * c.cols);
      std::vector<std::unique_ptr<Floats>> y;
      for (const Part& part : c.parts) y.push_back(std::make_unique<Floats>(gpu, t * part.rows));
      const auto run = [&](const ExecContext& ctx, int i) {
        LinearsArgs args{.x = x.tensor({t, c.cols}), .count = static_cast<int>(c.parts.size())};
        for (size_t j = 0; j < c.parts.size(); ++j) args.parts[j] = {.w = (*weights[j])[i], .y = y[j]->tensor({t, c.parts[j].rows})};
        LinearsCuda(ctx, args);
      };
      double us[2], limit[2];
      gpu.ctx().regime = RegimeOfPrompt(t);
      for (const bool overlap : {false, true}) {
        gpu.ctx().overlap = overlap;
        limit[overlap] = gpu.ReadLimitUs(bytes);
        us[overlap] = gpu.MedianUs(copies, run);
      }
      Line("linears").Add("case", c.name).Add("K", c.cols).Add("T", t).Add("MB", static_cast<double>(bytes) * 1e-6).Add("us", us[0])
          .Add("limit_us", limit[0]).Add("ratio", us[0] / limit[0]).Add("overlap_us", us[1]).Add("overlap_limit_us", limit[1])
          .Add("overlap_ratio", us[1] / limit[1]).Print();
    }
  }
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  std::vector<int64_t> token_counts;
  for (int i = 1; i < argc; ++i) token_counts.push_back(std::atoll(argv[i]));
  if (token_counts.empty()) token_counts = {1, 8};
  dsv4::bench::Run(token_counts);
}
