// A linear's exact result, error bounds for each way to compute it, and these ways: kernels of a CPU, or the GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/input_parts.h"
#include "support/quant_fixture.h"

namespace dsv4::test {

// The sums that determine the bound: |got - sum_k x w| <= gamma_n sum_k |x| |w|.
enum class LinearSums {
  // A product passes through at most n roundings: its own (generic kernel), 32 additions in a lane of its chunk, an
  // addition (and for FP8 a multiplication) per chunk of 128 columns, 3 additions of lanes, the global scale. The
  // reference rounds once.
  kLanes,
  // AMX tiles: 16 additions in a step of 32 columns, the sum of two, an addition per step of a chunk and, as above, for
  // each chunk; two for the three parts of an input; the global scale; the reference. Numbers below 2^-126 may be lost:
  // at most each of three products and three sums per column.
  kAmx,
  // A GPU's tensor cores: x is two BF16 numbers (with `f32_inputs` it is unchanged). Products of BF16 numbers are exact
  // in float32. A tensor core adds 16 of them and the accumulator with at worst one truncation (2^-23 relative to the
  // largest term) each. So K/16 steps, the partial sums (at most 128 + 8) and the factors stay within 2 gamma_(17 K/16
  // + 140). F32 weights (FMA, K/32 + 5 additions) are within less.
  kGpu,
  kGpuF32Inputs,
};

inline int64_t NumRoundings(int64_t k) { return std::min<int64_t>(CeilDiv(k, 8), 32) + 2 * CeilDiv(k, 128) + 6; }
inline int64_t NumTileRoundings(int64_t k) {
  return std::min<int64_t>(CeilDiv(k, 2), 16) + 1 + std::min<int64_t>(CeilDiv(k, 32), 8) + 2 * CeilDiv(k, 128) + 5;
}

inline double BoundOf(LinearSums sums, int64_t k, double magnitude, double largest) {
  switch (sums) {
    case LinearSums::kLanes:
      return Gamma(NumRoundings(k)) * magnitude;
    case LinearSums::kAmx:
      return Gamma(NumTileRoundings(k)) * magnitude + static_cast<double>(6 * k) * 0x1p-126 * largest;
    case LinearSums::kGpu:
    case LinearSums::kGpuF32Inputs:
      return 2 * Gamma(17 * CeilDiv(k, 16) + 140) * magnitude + 0x1p-126;
  }
  return 0;
}

struct ExactLinear {
  std::vector<double> y, bound;
};

inline ExactLinear ExactOf(LinearSums sums, const std::vector<float>& x, const QuantFixture& w, int64_t num_tokens,
                           int64_t groups) {
  const int64_t k_dim = w.tensor().cols, rows = w.tensor().rows, per_group = rows / groups;
  const bool parts = sums == LinearSums::kGpu && w.tensor().format != WeightFormat::kF32;
  const std::vector<double> weights = w.Decoded();
  ExactLinear e;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = 0, magnitude = 0, largest = 1;
      for (int64_t k = 0; k < k_dim; ++k) {
        const float in = x[static_cast<size_t>((t * groups + n / per_group) * k_dim + k)];
        const double product = (parts ? InParts(in, 2) : static_cast<double>(in)) *
                               weights[static_cast<size_t>(n * k_dim + k)];
        largest = std::max(largest, std::fabs(static_cast<double>(in)));
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y.push_back(sum);
      e.bound.push_back(BoundOf(sums, k_dim, magnitude, largest));
    }
  }
  return e;
}

// One way to compute a linear: a kernel of this machine's CPU, or the GPU with rounded or unrounded inputs.
struct LinearWay {
  LinearSums sums;
  void (*kernel)(const ExecContext& ctx, const LinearArgs& args);  // null: the GPU
  ExecContext ctx = {};

  bool on_gpu() const { return kernel == nullptr; }
  // y [T, N] of x [T, G*K].
  std::vector<float> Run(const QuantTensor& w, const Tensor& x, int64_t groups = 1) const {
    GuardBuffer<float> y({x.dim(0), w.rows});
    if (on_gpu()) {
      Mirror gpu;
      gpu.ctx().f32_inputs = sums == LinearSums::kGpuF32Inputs;
      Linear(gpu.ctx(), {.x = gpu.In(x), .parts = {{gpu.Weight(w), gpu.Out(y.tensor())}}, .groups = groups});
      gpu.Finish();
    } else {
      kernel(ctx, {.x = x, .parts = {{w, y.tensor()}}, .groups = groups});
    }
    return y.values();
  }
};

}  // namespace dsv4::test
