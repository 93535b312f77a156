#include "ops/linears/linears.h"

#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

// Any mixture of formats gives the bits of the single linears.
TEST(Linears, SameBitsAsOneByOne) {
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
      LinearsArgs args{.x = x.tensor(), .count = static_cast<int>(weights.size())};
      for (size_t i = 0; i < weights.size(); ++i) {
        y[i]->Poison();
        args.parts[i] = {.w = weights[i].tensor(), .y = y[i]->tensor()};
        Linear(c.ctx, {.x = x.tensor(), .w = weights[i].tensor(), .y = want[i]->tensor()});
      }
      Linears(c.ctx, args);
      for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(BitEqual(y[i]->span(), want[i]->span())) << c.name << ", part " << i;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
