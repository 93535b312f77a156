#include "model/deepseek_v4/load/tight_experts.h"

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "base/read_ahead.h"
#include "model/deepseek_v4/schema/expert_matrices.h"
#include "ops/pack_weight/tight.h"

namespace dsv4::deepseek_v4 {

namespace {

bool IsFp4(const QuantTensor& m) { return m && TightOf(m.format) != m.format; }

// Starts reading their block scales: half a megabyte each, between the codes of other matrices.
void ReadScalesAhead(const ExpertWeights& expert) {
  for (const auto matrix : kExpertMatrices) {
    if (const QuantTensor& m = expert.*matrix; IsFp4(m)) ReadAhead(m.block_scale, FileScaleBytes(m));
  }
}

void UseTightTilesIn(ThreadPool* pool, std::vector<ExpertWeights>& experts) {
  const auto count = static_cast<int64_t>(experts.size());
  std::vector<std::array<int, 3>> bases(experts.size());
  std::atomic<bool> all = true;
  ParallelFor(pool, count, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    ReadScalesAhead(experts[static_cast<size_t>(begin)]);
    for (int64_t e = begin; e < end && all; ++e) {
      const auto at = static_cast<size_t>(e);
      if (e + 1 < end) ReadScalesAhead(experts[at + 1]);
      for (size_t i = 0; i < 3 && all; ++i) {
        const QuantTensor& m = experts[at].*kExpertMatrices[i];
        const std::optional<int> base = IsFp4(m) ? FindTightBase(m) : std::nullopt;
        if (!base) all = false;
        bases[at][i] = base.value_or(0);
      }
    }
  });
  if (!all) return;
  for (size_t e = 0; e < experts.size(); ++e) {
    for (size_t i = 0; i < 3; ++i) {
      QuantTensor& m = experts[e].*kExpertMatrices[i];
      m.format = TightOf(m.format);
      m.exponent_base = static_cast<int16_t>(bases[e][i]);
    }
  }
}

}  // namespace

void UseTightTiles(ThreadPool* pool, Weights* weights) {
  for (LayerWeights& layer : weights->layers) UseTightTilesIn(pool, layer.moe.experts);
}

void UseWideTiles(Weights* weights) {
  for (LayerWeights& layer : weights->layers) {
    for (ExpertWeights& e : layer.moe.experts) {
      for (const auto m : kExpertMatrices) (e.*m).format = FormatOfRows((e.*m).format), (e.*m).exponent_base = 0;
    }
  }
}

}  // namespace dsv4::deepseek_v4
