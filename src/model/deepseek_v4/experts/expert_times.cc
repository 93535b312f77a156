#include "model/deepseek_v4/experts/expert_times.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/stopwatch.h"
#include "model/deepseek_v4/schema/expert_matrices.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr size_t kSamples = 12;  // experts of a measurement: together more than a cache holds
constexpr int64_t kManyRows = 4;
// Kernels that read the host's memory reach 42 to 51 GB/s where a copy has 55 (docs/offload.md).
constexpr double kKernelsOfCopies = 0.8;

using HostSample = std::pair<size_t, int32_t>;  // layer, expert

// Up to `most` experts on the host, those of the highest numbers of every layer.
std::vector<HostSample> HostSamples(const Weights& weights, const ExpertPlacement& placement, size_t most) {
  std::vector<HostSample> found;
  const auto num_experts = static_cast<int32_t>(weights.layers.front().moe.experts.size());
  for (int32_t e = num_experts - 1; e >= 0 && found.size() < most; --e) {
    for (size_t l = 0; l < static_cast<size_t>(weights.num_layers()) && found.size() < most; ++l) {
      if (placement.OnHost(static_cast<int64_t>(l), e)) found.emplace_back(l, e);
    }
  }
  return found;
}

// Of the CPU, per byte of an expert, each of which `rows` rows have chosen.
double CpuSeconds(ThreadPool* pool, const Weights& weights, std::span<const HostSample> samples,
                  std::span<const int64_t> expert_bytes, int64_t rows) {
  const int64_t d = weights.layers.front().moe.experts.front().gate.cols;
  std::vector<float> x(static_cast<size_t>(rows * d), 1.0f), y(x.size());
  const Tensor in{x.data(), DType::kF32, {rows, d}}, out{y.data(), DType::kF32, {rows, d}};
  ExpertSums sums;
  const auto compute = [&](const HostSample& p) {
    Choices one{.rows = rows, .slots = 1};
    one.experts.assign(static_cast<size_t>(rows), p.second), one.weights.assign(static_cast<size_t>(rows), 1.0f);
    sums.Compute(pool, in, one, weights.layers[p.first].moe.experts, /*limit=*/1, ActivationDtype::kNative, out);
  };
  compute(samples.back());  // wakes the threads
  double bytes = 0;
  const Stopwatch computing;
  for (const HostSample& p : samples) compute(p), bytes += static_cast<double>(expert_bytes[p.first]);
  return computing.Seconds() / bytes;
}

}  // namespace

bool MeasureExperts(Device& device, ThreadPool* pool, const Weights& weights, const ExpertPlacement& placement,
                    std::span<const int64_t> expert_bytes, ExpertTimes* per_byte) {
  DeviceBuffer place;
  if (!place.Allocate(device, *std::max_element(expert_bytes.begin(), expert_bytes.end()))) return false;
  const std::vector<HostSample> all = HostSamples(weights, placement, 2 * kSamples);
  const std::span<const HostSample> samples(all);
  double copied = 0;
  (void)device.Synchronize();
  const Stopwatch copying;
  for (const HostSample& p : samples) {
    for (const auto m : kExpertMatrices) {
      const QuantTensor& w = weights.layers[p.first].moe.experts[static_cast<size_t>(p.second)].*m;
      device.CopyWithin(place.data(), w.codes, PlacedCodeBytes(w));
      copied += static_cast<double>(PlacedCodeBytes(w));
    }
  }
  (void)device.Synchronize();
  per_byte->link = copying.Seconds() / copied / kKernelsOfCopies;
  // Not twice the same ones, where there are as many.
  const size_t first = samples.size() / 2;
  per_byte->cpu = CpuSeconds(pool, weights, samples.subspan(first), expert_bytes, 1);
  const double many = CpuSeconds(pool, weights, first > 0 ? samples.first(first) : samples, expert_bytes, kManyRows);
  per_byte->row = std::max(many - per_byte->cpu, 0.0) / static_cast<double>(kManyRows - 1);
  return true;
}

}  // namespace dsv4::deepseek_v4
