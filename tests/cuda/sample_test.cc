#include "ops/sample/sample.h"

#include <cmath>
#include <memory>

#include "dsv4/sampling.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/sample_fixture.h"

namespace dsv4 {
void SampleCuda(const ExecContext& ctx, const SampleArgs& args);
}

namespace dsv4::test {
namespace {

// One step of several rows on the GPU; states and outputs come back.
void SampleOnGpu(std::vector<std::unique_ptr<SampleState>>& states, const Tensor& logits,
                 GuardBuffer<int32_t>& tokens, const Tensor& logprobs) {
  const int64_t v = logits.dim(1);
  Mirror gpu;
  std::vector<SampleRow> rows;
  for (auto& s : states) {
    SampleRow row = s->row;
    const auto counts = [&](std::vector<uint16_t>& c) {
      return static_cast<uint16_t*>(gpu.Out({c.data(), DType::kBf16, {v}}).data);
    };
    row.prompt_count = counts(s->prompt_count);
    row.output_count = counts(s->output_count);
    row.bias_ids = gpu.Array(s->bias_ids);
    row.bias = gpu.Array(s->biases);
    row.allowed = s->allowed.empty() ? nullptr : gpu.Array(s->allowed);
    rows.push_back(row);
  }
  Tensor device_rows = gpu.Out(
      {rows.data(), DType::kU8, {static_cast<int64_t>(rows.size() * sizeof(SampleRow))}});
  SampleCuda(gpu.ctx(), {.logits = gpu.In(logits),
                         .rows = static_cast<SampleRow*>(device_rows.data),
                         .tokens = gpu.Out(tokens.tensor()),
                         .logprobs = gpu.Out(logprobs)});
  gpu.Finish();
  for (size_t i = 0; i < rows.size(); ++i) states[i]->row.num_outputs = rows[i].num_outputs;
}

// Masses are whole numbers: every implementation chooses the same, whatever the order of its sums.
void CompareSteps(Random& random, int64_t v, int64_t num_rows, int steps) {
  std::vector<std::unique_ptr<SampleState>> on_gpu, on_cpu;
  for (int64_t r = 0; r < num_rows; ++r) {
    const SampleCase c = RandomSampleCase(random, v);
    on_gpu.push_back(std::make_unique<SampleState>(c));
    on_cpu.push_back(std::make_unique<SampleState>(c));
  }
  for (int step = 0; step < steps; ++step) {
    GuardBuffer<float> logits({num_rows, v}), want_logprobs({num_rows}), logprobs({num_rows});
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::vector<float> row = RandomLogits(random, v);
      std::copy(row.begin(), row.end(), logits.row(r).begin());
    }
    GuardBuffer<int32_t> want({num_rows}), got({num_rows});
    SampleOnGpu(on_gpu, logits.tensor(), got, step % 2 ? logprobs.tensor() : Tensor{});
    for (int64_t r = 0; r < num_rows; ++r) {
      SampleRow& row = on_cpu[static_cast<size_t>(r)]->row;
      Sample({.reference_ops = true}, {.logits = {logits.row(r).data(), DType::kF32, {1, v}},
                                       .rows = &row,
                                       .tokens = {&want[r], DType::kI32, {1}},
                                       .logprobs = {&want_logprobs[r], DType::kF32, {1}}});
      ASSERT_EQ(got[r], want[r]) << "row " << r << " step " << step << " V " << v << " temperature "
                                 << row.temperature << " top_k " << row.top_k << " top_p " << row.top_p
                                 << " min_p " << row.min_p;
      ASSERT_EQ(on_gpu[static_cast<size_t>(r)]->row.num_outputs, row.num_outputs);
      ASSERT_EQ(on_gpu[static_cast<size_t>(r)]->output_count, on_cpu[static_cast<size_t>(r)]->output_count);
    }
    // Sums in another order and another log: a few roundings of float64, then one of float32.
    if (step % 2) {
      EXPECT_TRUE(Near(logprobs.span(), want_logprobs.span(), 1e-6, 1e-6));
    }
  }
}

TEST(CudaSample, ChoosesWhatTheReferenceChooses) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t v : {1, 2, 7, 8, 31, 300, 1000, 5003}) CompareSteps(random, v, 40, 4);
}

TEST(CudaSample, ChoosesWhatTheReferenceChoosesFromAWholeVocabulary) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  CompareSteps(random, 129280, 24, 2);
  CompareSteps(random, kMaxSampleVocab, 3, 1);
}

TEST(CudaSample, ChoosesWhatTheSamplerChooses) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const int64_t v = 4000;
  for (int trial = 0; trial < 30; ++trial) {
    const SampleCase c = RandomSampleCase(random, v);
    auto sampler = Sampler::Create(c.params, v);
    sampler.value()->AddPrompt(c.prompt);
    std::vector<std::unique_ptr<SampleState>> state;
    state.push_back(std::make_unique<SampleState>(c));
    for (int step = 0; step < 4; ++step) {
      GuardBuffer<float> logits({1, v}, RandomLogits(random, v));
      GuardBuffer<int32_t> got({1});
      SampleOnGpu(state, logits.tensor(), got, {});
      const auto want = sampler.value()->Sample(logits.span(), c.allowed);
      if (want.ok()) {
        ASSERT_EQ(got[0], want.value().id);
      } else {
        ASSERT_LT(got[0], 0);
      }
    }
  }
}

// Logits that are all alike fill one bin with more tokens than are put in order at once.
TEST(CudaSample, CutsLogitsThatAreAlike) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  const int64_t v = 60000;
  for (int kind = 0; kind < 2; ++kind) {
    for (const int64_t top_k : {0, 777}) {
      SampleCase c{.v = v};
      c.params.top_k = top_k;
      c.params.top_p = 0.37f;
      c.params.seed = random.Bits();
      std::vector<std::unique_ptr<SampleState>> on_gpu;
      on_gpu.push_back(std::make_unique<SampleState>(c));
      SampleState on_cpu(c);
      for (int step = 0; step < 5; ++step) {
        GuardBuffer<float> logits({1, v});
        for (float& x : logits.span()) x = kind == 0 ? 1.0f : static_cast<float>(random.Uniform(1, 1.02));
        GuardBuffer<int32_t> want({1}), got({1});
        SampleOnGpu(on_gpu, logits.tensor(), got, {});
        Sample({.reference_ops = true},
               {.logits = logits.tensor(), .rows = &on_cpu.row, .tokens = want.tensor()});
        ASSERT_EQ(got[0], want[0]);
      }
    }
  }
}

// One launch each, so that compute-sanitizer ends soon.
void ChooseOnce(const SamplingParams& params) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  SampleCase c{.v = 3000, .params = params};
  c.params.seed = 7;
  std::vector<std::unique_ptr<SampleState>> on_gpu;
  on_gpu.push_back(std::make_unique<SampleState>(c));
  SampleState on_cpu(c);
  GuardBuffer<float> logits({1, c.v}, random.Normals(c.v, 3));
  GuardBuffer<int32_t> want({1}), got({1});
  SampleOnGpu(on_gpu, logits.tensor(), got, {});
  Sample({.reference_ops = true}, {.logits = logits.tensor(), .rows = &on_cpu.row, .tokens = want.tensor()});
  EXPECT_EQ(got[0], want[0]);
}
TEST(CudaSample, GreedyShort) { ChooseOnce({.temperature = 0}); }
TEST(CudaSample, WholeShort) { ChooseOnce({.temperature = 0.8f}); }
TEST(CudaSample, TopPShort) { ChooseOnce({.temperature = 1, .top_p = 0.9f}); }
TEST(CudaSample, AllCutsShort) { ChooseOnce({.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f}); }

}  // namespace
}  // namespace dsv4::test
