#include "model/deepseek_v4/load/synthetic_values.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/fill_weight/fill_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

// Marks a tensor that exists before it has an address.
uint8_t* Somewhere() {
  static uint8_t byte;
  return &byte;
}

WeightFormat FormatOf(WeightKind kind, const SyntheticModel& model) {
  const bool fp8_dense = model.fp8_dense;
  switch (kind) {
    case WeightKind::kMix:
      return WeightFormat::kF32;
    case WeightKind::kDense:
      return fp8_dense ? WeightFormat::kFp8Block : WeightFormat::kNvfp4;
    case WeightKind::kCompressor:
      return fp8_dense ? WeightFormat::kBf16 : WeightFormat::kNvfp4;
    case WeightKind::kExpert:
      return model.experts == SyntheticExperts::kMxfp4       ? WeightFormat::kMxfp4Tight
             : model.experts == SyntheticExperts::kNvfp4Cast ? WeightFormat::kNvfp4Tight
                                                             : WeightFormat::kNvfp4;
    default:
      return WeightFormat::kBf16;
  }
}

QuantTensor Matrix(WeightFormat f, const Shape& shape) {
  QuantTensor m{.format = f, .rows = shape[0], .cols = shape[1], .codes = Somewhere()};
  if (m.quantised()) m.block_scale = Somewhere();
  if (f == WeightFormat::kFp8Block) m.scale_dtype = DType::kF8E8M0;
  return m;
}

// The router score whose logit, normally distributed, is exceeded with this probability.
double ScoreExceededBy(double probability) {
  double low = -12, high = 12;
  for (int i = 0; i < 60; ++i) {
    const double z = (low + high) / 2;
    (std::erfc(z / std::sqrt(2.0)) / 2 > probability ? low : high) = z;
  }
  return std::sqrt(std::log1p(std::exp(low)));
}

}  // namespace

Weights SyntheticShapes(const Config& config, const SyntheticModel& model) {
  Weights w;
  MakeWeights(config, w, [&](const WeightRef& ref, const WeightOwner& owner, const Shape& shape) {
    const WeightField to = ref.row->field(owner);
    if (to.matrix != nullptr) *to.matrix = Matrix(FormatOf(ref.row->kind, model), shape);
    const DType dtype = ref.row->kind == WeightKind::kIds ? DType::kI32 : DType::kF32;
    if (to.vector != nullptr) *to.vector = {Somewhere(), dtype, shape};
    return true;
  });
  return w;
}

float SyntheticStd(const QuantTensor& m, WeightKind kind) {
  return kind == WeightKind::kEmbedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(m.cols));
}

std::vector<double> SkewedShares(const Config& c, uint64_t seed) {
  constexpr double kFalls = 0.9, kMost = 0.95;
  const auto n = static_cast<size_t>(c.num_experts);
  std::vector<double> shares(n);
  double sum = 0;
  for (size_t r = 0; r < n; ++r) sum += shares[r] = std::pow(static_cast<double>(r + 1), -kFalls);
  for (double& share : shares) share = std::min(kMost, share / sum * static_cast<double>(c.experts_per_token));
  for (size_t r = n - 1; r > 0; --r) std::swap(shares[r], shares[RandomBits(seed, r) % (r + 1)]);
  return shares;
}

std::vector<float> SyntheticVector(const WeightRow& row, const Config& config, const SyntheticModel& model,
                                   int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  if (model.skewed_routing && row.presence == WeightPresence::kLearned) {
    const std::vector<double> shares = SkewedShares(config, seed);
    for (size_t e = 0; e < values.size(); ++e) values[e] = static_cast<float>(1 - ScoreExceededBy(shares[e]));
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.1f * FillValue(seed, i);
  return values;
}

std::vector<int32_t> SyntheticHashTable(const Config& c, const SyntheticModel& model, uint64_t seed) {
  std::vector<double> below;  // sums of shares, to draw from
  if (model.skewed_routing) below = SkewedShares(c, seed);
  std::partial_sum(below.begin(), below.end(), below.begin());
  std::vector<int32_t> table;
  table.reserve(static_cast<size_t>(c.vocab_size * c.experts_per_token));
  uint64_t counter = 0;
  const auto draw = [&] {
    if (below.empty()) return static_cast<int32_t>(RandomBits(seed, counter++) % static_cast<uint64_t>(c.num_experts));
    const double at = RandomUniform(seed, counter++) * below.back();
    return static_cast<int32_t>(std::upper_bound(below.begin(), below.end() - 1, at) - below.begin());
  };
  for (int64_t v = 0; v < c.vocab_size; ++v) {
    const auto row = static_cast<int64_t>(table.size());
    while (static_cast<int64_t>(table.size()) - row < c.experts_per_token) {
      const int32_t e = draw();
      if (std::find(table.begin() + row, table.end(), e) == table.end()) table.push_back(e);
    }
  }
  return table;
}

}  // namespace dsv4::deepseek_v4
