// Properties of the op; tests/engine/sample_op_test.cc compares it with the engine's sampler.
#include "ops/sample/sample.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/sample_fixture.h"
#include "support/sample_on_gpu.h"

namespace dsv4::test {
namespace {

int32_t SampleOne(On on, const std::vector<float>& logits, SampleRow& row, float* logprob = nullptr) {
  GuardBuffer<float> x({1, static_cast<int64_t>(logits.size())}, logits), p({1});
  GuardBuffer<int32_t> token({1});
  const OpFn<SampleArgs> op = on == On::kGpu ? SampleOnGpu : Sample;
  op({}, {.logits = x.tensor(), .rows = &row, .tokens = token.tensor(), .logprobs = p.tensor()});
  if (logprob != nullptr) *logprob = p[0];
  return token[0];
}

DSV4_DEVICE_TEST(Sample, GreedyTakesTheLargestAndTheLowestOfEquals) {
  SampleRow row{.temperature = 0};
  float logprob = 0;
  EXPECT_EQ(SampleOne(on, {1, 3, 2, 3}, row, &logprob), 1);
  EXPECT_NEAR(logprob, 3 - std::log(std::exp(1.0) + std::exp(2.0) + 2 * std::exp(3.0)), 1e-6);
  EXPECT_EQ(row.num_outputs, 1u);
}

DSV4_DEVICE_TEST(Sample, TopKOneIsGreedyAtAnyTemperature) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SampleRow row{.temperature = 5, .top_k = 1, .seed = seed};
    EXPECT_EQ(SampleOne(on, {0.5f, 0.6f, 0.4f}, row), 1);
  }
}

DSV4_DEVICE_TEST(Sample, FollowsTheDistribution) {
  // Probabilities 1/2, 1/4, 1/4; 4,000 draws: three standard deviations are below 0.025.
  const std::vector<float> logits = {std::log(2.0f), 0, 0};
  std::array<int, 3> count{};
  SampleRow row{.seed = 11};
  for (int i = 0; i < 4000; ++i) ++count[static_cast<size_t>(SampleOne(on, logits, row))];
  EXPECT_NEAR(count[0] / 4000.0, 0.5, 0.025);
  EXPECT_NEAR(count[1] / 4000.0, 0.25, 0.025);
  EXPECT_EQ(row.num_outputs, 4000u);
}

DSV4_DEVICE_TEST(Sample, DamagedRowsAreNamedAndKeepTheirState) {
  const float infinity = std::numeric_limits<float>::infinity();
  SampleRow row{.seed = 3, .num_outputs = 9};
  EXPECT_EQ(SampleOne(on, {1, std::nanf(""), 2}, row), kSampleNan);
  EXPECT_EQ(SampleOne(on, {-infinity, -infinity}, row), kSampleNothing);
  const int32_t ids[2] = {0, 1};
  const float bias[2] = {-infinity, -infinity};
  row.num_bias = 2, row.bias_ids = ids, row.bias = bias;
  EXPECT_EQ(SampleOne(on, {1, 2}, row), kSampleBanned);
  EXPECT_EQ(row.num_outputs, 9u);
}

// Tokens that are assumed to be output count as output, and leave no trace.
DSV4_DEVICE_TEST(Sample, TokensBesidesCountAsOutput) {
  Random random(21);
  const int64_t v = 300;
  for (int trial = 0; trial < 40; ++trial) {
    SampleCase c = RandomSampleCase(random, v);
    c.params.repeat_penalty = 1.4f, c.params.presence_penalty = 0.7f, c.params.frequency_penalty = 0.9f;
    SampleState known(c), assumed(c);
    std::vector<int32_t> besides;
    for (int64_t i = random.Index(9); i >= 0; --i) besides.push_back(static_cast<int32_t>(random.Index(5)));
    for (const int32_t id : besides) ++known.output_count[static_cast<size_t>(id)];
    assumed.row.also = besides.data();
    assumed.row.num_also = static_cast<int32_t>(besides.size());
    assumed.row.counts = false;
    const std::vector<uint16_t> before = assumed.output_count;
    const std::vector<float> logits = RandomLogits(random, v);
    EXPECT_EQ(SampleOne(on, logits, assumed.row), SampleOne(on, logits, known.row)) << trial;
    EXPECT_EQ(assumed.output_count, before);
    EXPECT_EQ(assumed.row.num_outputs, 0u);
  }
}

// The rest needs a second implementation to compare with the reference; a CPU has none.
void SampleStates(std::vector<std::unique_ptr<SampleState>>& states, const Tensor& logits, GuardBuffer<int32_t>& tokens,
                  const Tensor& logprobs) {
  std::vector<SampleRow> rows;
  for (const auto& s : states) rows.push_back(s->row);
  SampleOnGpu({}, {.logits = logits, .rows = rows.data(), .tokens = tokens.tensor(), .logprobs = logprobs});
  for (size_t i = 0; i < rows.size(); ++i) states[i]->row.num_outputs = rows[i].num_outputs;
}

// Masses are whole numbers: every implementation chooses the same token, in any order of its sums.
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
    SampleStates(on_gpu, logits.tensor(), got, step % 2 ? logprobs.tensor() : Tensor{});
    for (int64_t r = 0; r < num_rows; ++r) {
      SampleRow& row = on_cpu[static_cast<size_t>(r)]->row;
      Sample({.reference_ops = true}, {.logits = {logits.row(r).data(), DType::kF32, {1, v}},
                                       .rows = &row,
                                       .tokens = {&want[r], DType::kI32, {1}},
                                       .logprobs = {&want_logprobs[r], DType::kF32, {1}}});
      ASSERT_EQ(got[r], want[r]) << "row " << r << " step " << step << " V " << v << " temperature " << row.temperature
                                 << " top_k " << row.top_k << " top_p " << row.top_p << " min_p " << row.min_p;
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

// Nearly equal logits fill one bin with more tokens than are sorted at once.
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
        SampleStates(on_gpu, logits.tensor(), got, {});
        Sample({.reference_ops = true}, {.logits = logits.tensor(), .rows = &on_cpu.row, .tokens = want.tensor()});
        ASSERT_EQ(got[0], want[0]);
      }
    }
  }
}

// One launch each, so that compute-sanitizer is fast.
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
  SampleStates(on_gpu, logits.tensor(), got, {});
  Sample({.reference_ops = true}, {.logits = logits.tensor(), .rows = &on_cpu.row, .tokens = want.tensor()});
  EXPECT_EQ(got[0], want[0]);
}
TEST(CudaSample, GreedyShort) { ChooseOnce({.temperature = 0}); }
TEST(CudaSample, WholeShort) { ChooseOnce({.temperature = 0.8f}); }
TEST(CudaSample, TopPShort) { ChooseOnce({.temperature = 1, .top_p = 0.9f}); }
TEST(CudaSample, AllCutsShort) { ChooseOnce({.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f}); }

}  // namespace
}  // namespace dsv4::test
