// Ops allocate nothing after their working memory has grown: a decode step repeats the same sizes.
#include "ops/experts/experts.h"
#include "ops/kernels.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "support/count_allocations.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

template <typename Fn>
int64_t AllocationsOfSecondCall(const Fn& fn) {
  fn();
  const int64_t before = num_allocations.load();
  fn();
  return num_allocations.load() - before;
}

TEST(Allocation, LinearAllocatesOnce) {
  Random random(1);
  const ExecContext ctx = TwoThreads();
  for (const QuantCase& kind : AllQuantCases()) {
    const QuantFixture w(random, kind, 320, 256);
    for (const int64_t t : {1, 5, 64}) {
      GuardBuffer<float> x({t, 256}, random.Normals(t * 256)), y({t, 320});
      for (const ActivationDtype mode :
           {ActivationDtype::kNative, ActivationDtype::kInt8, ActivationDtype::kInt16, ActivationDtype::kInt24}) {
        const auto run = [&] {
          Linear(ctx, {.x = x.tensor(), .parts = {{w.tensor(), y.tensor()}}, .activation = mode});
        };
        EXPECT_EQ(AllocationsOfSecondCall(run), 0) << kind.name() << " T " << t;
      }
    }
  }
}

TEST(Allocation, ExpertsAllocateOnce) {
  Random random(2);
  const ExecContext ctx = TwoThreads();
  const int64_t t = 4, d = 256, f = 128, num_experts = 4, slots = 2;
  std::vector<QuantFixture> weights;
  std::vector<ExpertMatrices> matrices;
  for (int64_t e = 0; e < num_experts; ++e) {
    for (const bool down : {false, false, true}) {
      weights.emplace_back(random, QuantCase{WeightFormat::kNvfp4}, down ? d : f, down ? f : d);
    }
  }
  for (size_t e = 0; e < static_cast<size_t>(num_experts); ++e) {
    matrices.push_back({weights[3 * e].tensor(), weights[3 * e + 1].tensor(), weights[3 * e + 2].tensor()});
  }
  std::vector<int32_t> chosen{0, 1, 1, 2, 2, 3, 0, 3};
  GuardBuffer<float> x({t, d}, random.Normals(t * d)), gates({t, slots}, random.Normals(t * slots)),
      hidden({t * slots, 2 * f}), outputs({t * slots, d}), rounded({t, d}), shared({t, d}, random.Normals(t * d)),
      y({t, d});
  for (const ActivationDtype mode : {ActivationDtype::kNative, ActivationDtype::kFp8, ActivationDtype::kInt8,
                                     ActivationDtype::kInt16, ActivationDtype::kInt24}) {
    const auto run = [&] {
      Experts(ctx, {.x = x.tensor(),
                    .experts = {chosen.data(), DType::kI32, {t, slots}},
                    .weights = gates.tensor(),
                    .matrices = matrices,
                    .limit = 10,
                    .activation = mode,
                    .hidden = hidden.tensor(),
                    .outputs = outputs.tensor(),
                    .rounded_x = rounded.tensor(),
                    .shared = shared.tensor(),
                    .y = y.tensor()});
    };
    EXPECT_EQ(AllocationsOfSecondCall(run), 0);
  }
}

}  // namespace
}  // namespace dsv4::test
