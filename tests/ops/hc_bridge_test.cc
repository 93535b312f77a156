#include "ops/hc_bridge/hc_bridge.h"

#include <gtest/gtest.h>

#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/rms_norm/rms_norm.h"
#include "support/compare.h"
#include "support/contexts.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

TEST(HcBridge, IsTheCompositionOfItsOps) {
  Random random(1);
  for (const int64_t t : {1, 5, 40}) {
    for (const bool first : {false, true}) {
      const int64_t h = 4, d = 96, n = (2 + h) * h;
      const QuantFixture fn(random, {WeightFormat::kF32}, n, h * d);
      GuardBuffer<float> base({n}, random.Normals(n)), scale({3}, {0.05f, 0.03f, 0.08f}),
          norm({d}, random.Normals(d)), y({t, d}, random.Normals(t * d));
      const std::vector<float> streams = random.Normals(t * h * d), post = random.Uniforms(t * h, 0, 2),
                               comb = random.Uniforms(t * h * h, 0, 0.5);
      for (const NamedContext& c : AllContexts()) {
        SCOPED_TRACE(c.name);
        struct Result {
          GuardBuffer<float> streams, x, post, comb;
        };
        Result want{{{t, h, d}, streams}, GuardBuffer<float>({t, d}), {{t, h}, post}, {{t, h, h}, comb}};
        Result got{{{t, h, d}, streams}, GuardBuffer<float>({t, d}), {{t, h}, post}, {{t, h, h}, comb}};
        if (!first) {
          HcPost(c.ctx, {.y = y.tensor(),
                         .post = want.post.tensor(),
                         .comb = want.comb.tensor(),
                         .streams = want.streams.tensor()});
        }
        HcPre(c.ctx, {.streams = want.streams.tensor(),
                      .fn = fn.tensor(),
                      .base = base.tensor(),
                      .scale = scale.tensor(),
                      .iters = 20,
                      .eps = 1e-6f,
                      .norm_eps = 1e-5f,
                      .x = want.x.tensor(),
                      .post = want.post.tensor(),
                      .comb = want.comb.tensor()});
        RmsNorm(c.ctx, {.x = want.x.tensor(), .weight = norm.tensor(), .y = want.x.tensor(), .eps = 1e-5f});
        HcBridge(c.ctx, {.streams = got.streams.tensor(),
                         .y = first ? Tensor{} : y.tensor(),
                         .fn = fn.tensor(),
                         .base = base.tensor(),
                         .scale = scale.tensor(),
                         .iters = 20,
                         .eps = 1e-6f,
                         .norm_eps = 1e-5f,
                         .norm = norm.tensor(),
                         .x = got.x.tensor(),
                         .post = got.post.tensor(),
                         .comb = got.comb.tensor()});
        EXPECT_TRUE(BitEqual(got.streams.span(), want.streams.span()));
        EXPECT_TRUE(BitEqual(got.x.span(), want.x.span()));
        EXPECT_TRUE(BitEqual(got.post.span(), want.post.span()));
        EXPECT_TRUE(BitEqual(got.comb.span(), want.comb.span()));
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
