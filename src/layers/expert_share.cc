#include "layers/expert_share.h"

#include <algorithm>

#include "base/check.h"
#include "ops/idle_row.h"

namespace dsv4 {

int64_t ShareOfCpu(std::span<ChosenExpert> chosen, const ExpertTimes& times) {
  std::sort(chosen.begin(), chosen.end(), [](const ChosenExpert& a, const ChosenExpert& b) {
    return a.rows != b.rows ? a.rows < b.rows : a.expert < b.expert;
  });
  const auto all = static_cast<int64_t>(chosen.size());
  double cpu = 0, least = static_cast<double>(all) * times.link;
  int64_t share = 0;
  for (int64_t n = 1; n <= all; ++n) {
    cpu += times.cpu + times.row * static_cast<double>(chosen[static_cast<size_t>(n - 1)].rows - 1);
    const double both = std::max(cpu, static_cast<double>(all - n) * times.link);
    if (both < least) least = both, share = n;
  }
  return share;
}

void SplitChoices(std::span<const int32_t> experts, std::span<const float> weights, int64_t rows,
                  std::span<const uint8_t> taken, Choices* cpu, Choices* device) {
  const int64_t slots = rows == 0 ? 0 : static_cast<int64_t>(experts.size()) / rows;
  const auto is_taken = [&](int32_t e) {
    return e >= 0 && static_cast<size_t>(e) < taken.size() && taken[static_cast<size_t>(e)] != 0;
  };
  for (const bool of_cpu : {true, false}) {
    Choices& to = of_cpu ? *cpu : *device;
    const auto belongs = [&](int64_t i) {
      const int32_t e = experts[static_cast<size_t>(i)];
      return e != kNoExpert && is_taken(e) == of_cpu;
    };
    to.rows = rows, to.slots = 0;
    for (int64_t t = 0; t < rows; ++t) {
      int64_t n = 0;
      for (int64_t i = t * slots; i < (t + 1) * slots; ++i) n += belongs(i) ? 1 : 0;
      to.slots = std::max(to.slots, n);
    }
    to.experts.assign(static_cast<size_t>(rows * to.slots), kNoExpert);
    to.weights.assign(static_cast<size_t>(rows * to.slots), 0.0f);
    for (int64_t t = 0; t < rows; ++t) {
      auto at = static_cast<size_t>(t * to.slots);
      for (int64_t i = t * slots; i < (t + 1) * slots; ++i) {
        if (!belongs(i)) continue;
        to.experts[at] = experts[static_cast<size_t>(i)];
        to.weights[at++] = weights[static_cast<size_t>(i)];
      }
    }
  }
}

void ExpertSums::Reserve(int64_t rows, int64_t slots, int64_t d, int64_t f) {
  const auto room = [](std::vector<float>& v, int64_t n) {
    if (v.size() < static_cast<size_t>(n)) v.resize(static_cast<size_t>(n));
  };
  room(hidden_, rows * slots * 2 * f), room(outputs_, rows * slots * d), room(rounded_, rows * d);
}

void ExpertSums::Compute(ThreadPool* pool, const Tensor& x, Choices& c, std::span<const ExpertMatrices> matrices,
                         float limit, ActivationDtype activation, const Tensor& y) {
  DSV4_CHECK(c.slots > 0 && c.rows == x.dim(0) && y.shape == x.shape);
  const int64_t t = c.rows, d = x.dim(1), pairs = t * c.slots;
  const auto any = std::find_if(c.experts.begin(), c.experts.end(), [](int32_t e) { return e != kNoExpert; });
  const int64_t f = matrices[static_cast<size_t>(*any)].gate.rows;
  Reserve(t, c.slots, d, f);
  std::fill_n(y.f32(), t * d, 0.0f);
  Experts({.pool = pool}, {.x = x,
                           .experts = {c.experts.data(), DType::kI32, {t, c.slots}},
                           .weights = {c.weights.data(), DType::kF32, {t, c.slots}},
                           .matrices = matrices,
                           .limit = limit,
                           .activation = activation,
                           .hidden = {hidden_.data(), DType::kF32, {pairs, 2 * f}},
                           .outputs = {outputs_.data(), DType::kF32, {pairs, d}},
                           .rounded_x = {rounded_.data(), DType::kF32, {t, d}},
                           .shared = y,
                           .y = y});
}

}  // namespace dsv4
