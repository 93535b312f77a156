// LinearCuda at the true shapes of Flash and Pro (one GPU holds the whole matrix), against a pure read of the same bytes.
//   linear_bench [first T ...]      default 1 8
#include "bench/cuda/harness.cuh"
#include "engine/regimes.h"
#include "ops/linear/linear.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
}

namespace dsv4::bench {
namespace {

struct Case {
  const char* name;
  WeightFormat format;
  int64_t rows, cols, groups;
};

constexpr WeightFormat kN = WeightFormat::kNvfp4, kM = WeightFormat::kMxfp4, kF = WeightFormat::kFp8Block, kB = WeightFormat::kBf16;
constexpr Case kCases[] = {
    {"flash q_a", kN, 1024, 4096, 1},        {"flash kv", kN, 512, 4096, 1},        {"flash q_b", kN, 32768, 1024, 1},
    {"flash index q_b", kN, 8192, 1024, 1},  {"flash o_a", kN, 8192, 4096, 8},      {"flash o_b", kN, 4096, 8192, 1},
    {"flash shared up", kN, 2048, 4096, 1},  {"flash shared down", kN, 4096, 2048, 1},
    {"flash head", kN, 129280, 4096, 1},     {"pro q_a", kN, 1536, 7168, 1},        {"pro kv", kN, 512, 7168, 1},
    {"pro q_b", kN, 65536, 1536, 1},         {"pro o_a", kN, 16384, 4096, 16},      {"pro o_b", kN, 7168, 16384, 1},
    {"pro shared up", kN, 3072, 7168, 1},    {"pro shared down", kN, 7168, 3072, 1},
    {"flash q_a", kF, 1024, 4096, 1},        {"flash q_b", kF, 32768, 1024, 1},     {"flash o_b", kF, 4096, 8192, 1},
    {"flash q_b", kM, 32768, 1024, 1},       {"flash router", kB, 256, 4096, 1},    {"flash compressor", kB, 1024, 4096, 1},
    {"pro router", kB, 384, 7168, 1},        {"flash head", kB, 129280, 4096, 1},
};

void Run(const std::vector<int64_t>& token_counts) {
  Gpu gpu;
  for (const Case& c : kCases) {
    Weights w(gpu, c.format, c.rows, c.cols);
    for (const int64_t t : token_counts) {
      Floats x(gpu, t * c.groups * c.cols), y(gpu, t * c.rows);
      const auto run = [&](const ExecContext& ctx, int i) {
        LinearCuda(ctx, {.x = x.tensor({t, c.groups * c.cols}), .w = w[i], .y = y.tensor({t, c.rows}), .groups = c.groups});
      };
      double us[2], limit[2];
      gpu.ctx().regime = RegimeOfPrompt(t);
      for (const bool overlap : {false, true}) {
        gpu.ctx().overlap = overlap;
        limit[overlap] = gpu.ReadLimitUs(w.bytes());
        us[overlap] = gpu.MedianUs(w.copies(), run);
      }
      Line("linear").Add("case", c.name).Add("format", std::string(NameOf(c.format))).Add("N", c.rows).Add("K", c.cols).Add("T", t)
          .Add("MB", static_cast<double>(w.bytes()) * 1e-6).Add("us", us[0]).Add("limit_us", limit[0]).Add("ratio", us[0] / limit[0])
          .Add("overlap_us", us[1]).Add("overlap_limit_us", limit[1]).Add("overlap_ratio", us[1] / limit[1]).Print();
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
