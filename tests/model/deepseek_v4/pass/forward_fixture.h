// The forward pass of a fixture, layer by layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "io/tensor_source.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/pass/forward.h"
#include "support/fixture.h"

namespace dsv4::test {

// The streams of the last `last` tokens of the fixture's prompt after every layer, nothing rounded.
inline void RunForward(const std::string& dir, bool reference_ops, std::vector<std::vector<float>>* streams,
                       int64_t last) {
  auto config = deepseek_v4::LoadConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status().message();
  auto source = TensorSource::Open(dir);
  ASSERT_TRUE(source.ok()) << source.status().message();
  auto weights = deepseek_v4::BindWeights(*config, *source);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const deepseek_v4::Model model = deepseek_v4::MakeModel(*config, std::move(*weights),
                                                          {KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kF32});
  const Array ids = ReferenceArray(dir, "prompt_ids");
  const auto t = static_cast<int64_t>(ids.i32.size());
  KvMemory memory(model.kv_layout);
  auto cache = std::move(SequenceCache::Create(memory)).value();
  ASSERT_TRUE(cache->Reserve(t).ok());
  Step step;
  step.tokens = ids.i32;
  for (int64_t i = 0; i < t; ++i) step.positions.push_back(i);
  step.sequence_of.assign(ids.i32.size(), 0);
  step.sequences = {cache->View(0, 0, t)};
  deepseek_v4::Activations activations(model.config, t, 1);
  ThreadPool pool(2);
  const ExecContext ctx{.pool = &pool, .reference_ops = reference_ops};
  deepseek_v4::Forward(ctx, model, HostView(step), activations, {}, {}, [&](int64_t, const Tensor& s) {
    const int64_t width = s.dim(1) * s.dim(2);
    streams->emplace_back(s.f32() + (t - last) * width, s.f32() + t * width);
  });
}

// sqrt(sum (got - want)^2 / sum want^2)
inline double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / size);
}

inline std::string FixtureTestName(const testing::TestParamInfo<const char*>& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace dsv4::test
