#include "ops/linear/linear.h"

#include <memory>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

// Any mixture of formats gives the bits of the linears of one matrix.
TEST(LinearParts, SameBitsAsOneByOne) {
  Random random(1);
  const int64_t k = 192;
  for (const int64_t t : {1, 3, 20}) {
    GuardBuffer<float> x({t, k}, random.Normals(t * k));
    std::vector<QuantFixture> weights;
    std::vector<std::unique_ptr<GuardBuffer<float>>> want, y;
    for (const QuantCase kind : AllQuantCases()) {
      weights.emplace_back(random, kind, 5 + static_cast<int64_t>(weights.size()) * 17, k);
      const Shape shape{t, weights.back().tensor().rows};
      want.push_back(std::make_unique<GuardBuffer<float>>(shape));
      y.push_back(std::make_unique<GuardBuffer<float>>(shape));
    }
    for (const NamedContext& c : AllContexts()) {
      LinearArgs args{.x = x.tensor()};
      for (size_t i = 0; i < weights.size(); ++i) {
        y[i]->Poison();
        args.parts.Add({.w = weights[i].tensor(), .y = y[i]->tensor()});
        Linear(c.ctx, {.x = x.tensor(), .parts = {{weights[i].tensor(), want[i]->tensor()}}});
      }
      Linear(c.ctx, args);
      for (size_t i = 0; i < weights.size(); ++i)
        EXPECT_TRUE(BitEqual(y[i]->span(), want[i]->span())) << c.name << ", part " << i;
    }
  }
}

TEST(LinearParts, EachIsALineOfATrace) {
  Random random(2);
  const QuantFixture a(random, {WeightFormat::kBf16}, 5, 64), b(random, {WeightFormat::kNvfp4}, 9, 64);
  GuardBuffer<float> x({2, 64}, random.Normals(128)), ya({2, 5}), yb({2, 9});
  OpTrace trace;
  const ExecContext ctx{.trace = &trace};
  Linear(ctx, {.x = x.tensor(), .parts = {{a.tensor(), ya.tensor()}, {b.tensor(), yb.tensor()}}});
  ASSERT_EQ(trace.rows().size(), 2u);
  EXPECT_EQ(trace.rows()[0].detail, "BF16 5x64");
  EXPECT_EQ(trace.rows()[1].detail, "NVFP4 9x64");
}

TEST(LinearPartsDeathTest, RefusesWhatNoKernelTakes) {
  Random random(3);
  const QuantFixture w(random, {WeightFormat::kBf16}, 6, 32);
  GuardBuffer<float> x({1, 64}, random.Normals(64)), y({1, 6}), z({1, 6});
  const LinearPart part{w.tensor(), y.tensor()}, other{w.tensor(), z.tensor()};
  EXPECT_DEATH(Linear({}, {.x = x.tensor(), .parts = {part, other}, .groups = 2}), "2 parts of 2 groups");
  EXPECT_DEATH(Linear({}, {.x = x.tensor(), .parts = {}, .groups = 2}), "parts.empty");
  EXPECT_DEATH(LinearParts({part, part, part, part, part, part, part, part, part}),
               "more than 8 matrices of one input");
}

}  // namespace
}  // namespace dsv4::test
