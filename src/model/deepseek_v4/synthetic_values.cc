#include "model/deepseek_v4/synthetic_values.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "model/deepseek_v4/visit_weights.h"
#include "ops/fill_weight/fill_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

// Marks what is there, before it has an address.
uint8_t* Somewhere() {
  static uint8_t byte;
  return &byte;
}

WeightFormat FormatOf(WeightKind kind, const SyntheticModel& model) {
  const bool fp8_dense = model.fp8_dense;
  switch (kind) {
    case WeightKind::kMix: return WeightFormat::kF32;
    case WeightKind::kDense: return fp8_dense ? WeightFormat::kFp8Block : WeightFormat::kNvfp4;
    case WeightKind::kCompressor: return fp8_dense ? WeightFormat::kBf16 : WeightFormat::kNvfp4;
    case WeightKind::kExpert:
      return model.experts == SyntheticExperts::kMxfp4       ? WeightFormat::kMxfp4Tight
             : model.experts == SyntheticExperts::kNvfp4Cast ? WeightFormat::kNvfp4Tight
                                                             : WeightFormat::kNvfp4;
    default: return WeightFormat::kBf16;
  }
}

QuantTensor Matrix(WeightFormat f, const Shape& shape) {
  QuantTensor m{.format = f, .rows = shape[0], .cols = shape[1], .codes = Somewhere()};
  if (m.quantised()) m.block_scale = Somewhere();
  if (f == WeightFormat::kFp8Block) m.scale_dtype = DType::kF8E8M0;
  return m;
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

std::vector<float> SyntheticVector(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.1f * FillValue(seed, i);
  return values;
}

std::vector<int32_t> SyntheticHashTable(const Config& c, uint64_t seed) {
  std::vector<int32_t> table;
  table.reserve(static_cast<size_t>(c.vocab_size * c.experts_per_token));
  uint64_t counter = 0;
  for (int64_t v = 0; v < c.vocab_size; ++v) {
    const auto row = static_cast<int64_t>(table.size());
    while (static_cast<int64_t>(table.size()) - row < c.experts_per_token) {
      const auto e = static_cast<int32_t>(RandomBits(seed, counter++) % static_cast<uint64_t>(c.num_experts));
      if (std::find(table.begin() + row, table.end(), e) == table.end()) table.push_back(e);
    }
  }
  return table;
}

}  // namespace dsv4::deepseek_v4
