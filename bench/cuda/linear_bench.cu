// Times LinearCuda at the shapes of Flash and Pro (one GPU has the whole matrix), against a pure read of the same
// bytes. Matrices run alone, and together if they share their input in a layer.
//   linear_bench [part of the cases' names] [first T ...]      default: all, 1 8
#include "bench/cuda/harness.cuh"
#include "engine/setup/regimes.h"
#include "ops/linear/linear.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
}

namespace dsv4::bench {
namespace {

struct Matrix {
  WeightFormat format;
  int64_t rows;
};
struct Case {
  const char* name;
  int64_t cols;
  std::vector<Matrix> matrices;
  int64_t groups = 1;
};

constexpr WeightFormat kN = WeightFormat::kNvfp4, kM = WeightFormat::kMxfp4, kF = WeightFormat::kFp8Block,
                       kB = WeightFormat::kBf16;

std::vector<Case> Cases() {
  return {
      {"flash q_a", 4096, {{kN, 1024}}},
      {"flash kv", 4096, {{kN, 512}}},
      {"flash q_b", 1024, {{kN, 32768}}},
      {"flash index q_b", 1024, {{kN, 8192}}},
      {"flash o_a", 4096, {{kN, 8192}}, 8},
      {"flash o_b", 8192, {{kN, 4096}}},
      {"flash shared up", 4096, {{kN, 2048}}},
      {"flash shared down", 2048, {{kN, 4096}}},
      {"flash head", 4096, {{kN, 129280}}},
      {"pro q_a", 7168, {{kN, 1536}}},
      {"pro kv", 7168, {{kN, 512}}},
      {"pro q_b", 1536, {{kN, 65536}}},
      {"pro o_a", 4096, {{kN, 16384}}, 16},
      {"pro o_b", 16384, {{kN, 7168}}},
      {"pro shared up", 7168, {{kN, 3072}}},
      {"pro shared down", 3072, {{kN, 7168}}},
      {"flash q_a", 4096, {{kF, 1024}}},
      {"flash q_b", 1024, {{kF, 32768}}},
      {"flash o_b", 8192, {{kF, 4096}}},
      {"flash q_b", 1024, {{kM, 32768}}},
      {"flash router", 4096, {{kB, 256}}},
      {"flash compressor", 4096, {{kB, 1024}}},
      {"pro router", 7168, {{kB, 384}}},
      {"flash head", 4096, {{kB, 129280}}},
      // q_a | kv | compressor kv, gate | index kv, gate | index weights; q_b | index q_b; router | shared gate, up.
      {"flash in csa nvfp4", 4096, {{kN, 1024}, {kN, 512}, {kN, 1024}, {kN, 1024}, {kN, 256}, {kN, 256}, {kN, 64}}},
      {"flash in csa fp8+bf16", 4096, {{kF, 1024}, {kF, 512}, {kB, 1024}, {kB, 1024}, {kB, 256}, {kB, 256}, {kB, 64}}},
      {"flash in hca nvfp4", 4096, {{kN, 1024}, {kN, 512}, {kN, 512}, {kN, 512}}},
      {"flash q_b + index nvfp4", 1024, {{kN, 32768}, {kN, 8192}}},
      {"flash router + shared nvfp4", 4096, {{kB, 256}, {kN, 2048}, {kN, 2048}}},
      {"flash router + shared fp8", 4096, {{kB, 256}, {kF, 2048}, {kF, 2048}}},
      {"pro in csa nvfp4", 7168, {{kN, 1536}, {kN, 512}, {kN, 1024}, {kN, 1024}, {kN, 256}, {kN, 256}, {kN, 64}}},
      {"pro q_b + index nvfp4", 1536, {{kN, 65536}, {kN, 8192}}},
      {"pro router + shared nvfp4", 7168, {{kB, 384}, {kN, 3072}, {kN, 3072}}}};
}

struct OnDevice {
  int64_t bytes = 0, rows = 0;
  int copies = 0;
  std::vector<std::unique_ptr<Weights>> weights;

  OnDevice(Gpu& gpu, const Case& c) {
    for (const Matrix& m : c.matrices) {
      const QuantTensor w{.format = m.format, .rows = m.rows, .cols = c.cols};
      bytes += PackedCodeBytes(w) + PackedScaleBytes(w), rows += m.rows;
    }
    copies = Gpu::Copies(bytes);
    for (const Matrix& m : c.matrices)
      weights.push_back(std::make_unique<Weights>(gpu, m.format, m.rows, c.cols, copies));
  }
};

void RunCase(Gpu& gpu, const Case& c, const OnDevice& device, int64_t t) {
  Floats x(gpu, t * c.groups * c.cols);
  std::vector<std::unique_ptr<Floats>> y;
  for (const Matrix& m : c.matrices) y.push_back(std::make_unique<Floats>(gpu, t * m.rows));
  const auto run = [&](const ExecContext& ctx, int i) {
    LinearArgs args{.x = x.tensor({t, c.groups * c.cols}), .groups = c.groups};
    for (size_t j = 0; j < y.size(); ++j)
      args.parts.Add({.w = (*device.weights[j])[i], .y = y[j]->tensor({t, c.matrices[j].rows})});
    LinearCuda(ctx, args);
  };
  double us[2], limit[2];
  gpu.ctx().regime = RegimeOfPrompt(t);
  for (const bool overlap : {false, true}) {
    gpu.ctx().overlap = overlap;
    limit[overlap] = gpu.ReadLimitUs(device.bytes);
    us[overlap] = gpu.MedianUs(device.copies, run);
  }
  Line("linear")
      .Add("case", c.name)
      .Add("format", std::string(NameOf(c.matrices[0].format)))
      .Add("parts", static_cast<int64_t>(y.size()))
      .Add("N", device.rows)
      .Add("K", c.cols)
      .Add("T", t)
      .Add("MB", static_cast<double>(device.bytes) * 1e-6)
      .Add("us", us[0])
      .Add("limit_us", limit[0])
      .Add("ratio", us[0] / limit[0])
      .Add("overlap_us", us[1])
      .Add("overlap_limit_us", limit[1])
      .Add("overlap_ratio", us[1] / limit[1])
      .Print();
}

void Run(const std::string& names, const std::vector<int64_t>& token_counts) {
  Gpu gpu;
  for (const Case& c : Cases()) {
    if (std::string(c.name).find(names) == std::string::npos) continue;
    const OnDevice device(gpu, c);
    for (const int64_t t : token_counts) RunCase(gpu, c, device, t);
  }
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  std::vector<int64_t> token_counts;
  std::string names;
  for (int i = 1; i < argc; ++i) {
    if (const int64_t t = std::atoll(argv[i]); t > 0) {
      token_counts.push_back(t);
    } else {
      names = argv[i];
    }
  }
  if (token_counts.empty()) token_counts = {1, 8};
  dsv4::bench::Run(names, token_counts);
}
