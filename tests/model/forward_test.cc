// The streams after every layer against the float64 reference (`hidden.L`): where an error in the logits begins.

#include <algorithm>
#include <cmath>

#include "io/tensor_source.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/forward.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

class Hidden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Hidden,
                         testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "pro-official-cut",
                                         "flash-all-nvfp4"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

void RunForward(const std::string& dir, bool reference_ops, std::vector<std::vector<float>>* streams, int64_t last) {
  auto config = LoadConfig(dir);
  ASSERT_TRUE(config.ok()) << config.status().message();
  auto source = TensorSource::Open(dir);
  ASSERT_TRUE(source.ok()) << source.status().message();
  auto weights = BindWeights(*config, *source);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const Model model = MakeModel(*config, std::move(*weights), {KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kF32});
  const Array ids = ReferenceArray(dir, "prompt_ids");
  const auto t = static_cast<int64_t>(ids.i32.size());
  PagePool pages(model.kv_layout.page_bytes);
  auto cache = std::move(SequenceCache::Create(model.kv_layout, pages)).value();
  ASSERT_TRUE(cache->Reserve(t).ok());
  Step step;
  step.tokens = ids.i32;
  for (int64_t i = 0; i < t; ++i) step.positions.push_back(i);
  step.sequence_of.assign(ids.i32.size(), 0);
  step.sequences = {cache->View(0, 0, t)};
  Activations activations(model.config, t, 1);
  ThreadPool pool(2);
  const ExecContext ctx{.pool = &pool, .reference_ops = reference_ops};
  Forward(ctx, model, step, activations, {}, [&](int64_t, const Tensor& s) {
    const int64_t width = s.dim(1) * s.dim(2);
    streams->emplace_back(s.f32() + (t - last) * width, s.f32() + t * width);
  });
}

TEST_P(Hidden, StreamsAfterEveryLayerMatchTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  constexpr int64_t kLast = 64;  // the reference holds the last 64 tokens
  std::vector<std::vector<float>> streams;
  RunForward(dir, /*reference_ops=*/false, &streams, kLast);
  ASSERT_FALSE(streams.empty());
  for (size_t l = 0; l < streams.size(); ++l) {
    const Array reference = ReferenceArray(dir, "hidden." + std::to_string(l));
    ASSERT_EQ(streams[l].size(), reference.f32.size());
    // float32 against float64: relative to the layer's own size (docs/numerics.md).
    double error = 0, size = 0;
    for (size_t i = 0; i < streams[l].size(); ++i) {
      error += std::pow(static_cast<double>(streams[l][i]) - reference.f32[i], 2);
      size += std::pow(static_cast<double>(reference.f32[i]), 2);
    }
    EXPECT_LE(std::sqrt(error / size), 2e-5) << "layer " << l;
  }
}

// Every kernel in one place: the whole model on kernels against the whole model on references.
TEST_P(Hidden, KernelsAgreeWithReferences) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  std::vector<std::vector<float>> kernels, references;
  RunForward(dir, /*reference_ops=*/false, &kernels, 4);
  RunForward(dir, /*reference_ops=*/true, &references, 4);
  ASSERT_EQ(kernels.size(), references.size());
  for (size_t l = 0; l < kernels.size(); ++l) {
    double error = 0, size = 0;
    for (size_t i = 0; i < kernels[l].size(); ++i) {
      error += std::pow(static_cast<double>(kernels[l][i]) - references[l][i], 2);
      size += std::pow(static_cast<double>(references[l][i]), 2);
    }
    EXPECT_LE(std::sqrt(error / size), 2e-5) << "layer " << l;
  }
}

}  // namespace
}  // namespace dsv4::test
