#include "ops/embed/embed.h"

#include <cmath>

#include "ops/gather_rows/gather_rows.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void EmbedCuda(const ExecContext& ctx, const EmbedArgs& args);
void GatherRowsCuda(const ExecContext& ctx, const GatherRowsArgs& args);
}  // namespace dsv4

namespace dsv4::test {
namespace {

TEST(CudaEmbed, CopiesExactly) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32}) {
    for (const int64_t d : {1, 37, 256, 4096}) {
      const int64_t v = 11, h = d == 37 ? 3 : 4;
      const QuantFixture table(random, {format}, v, d);
      for (const int64_t t : {0, 1, 5, 300}) {
        GuardBuffer<int32_t> tokens(t);
        for (int64_t i = 0; i < t; ++i)
          tokens[i] = static_cast<int32_t>(i == 0 ? v - 1 : i == 1 ? 0 : random.Index(v));
        GuardBuffer<float> want({t, h, d}), got({t, h, d});
        Embed({.reference_ops = true},
              {.tokens = tokens.tensor(), .table = table.tensor(), .streams = want.tensor()});
        Mirror gpu;
        EmbedCuda(gpu.ctx(), {.tokens = gpu.In(tokens.tensor()),
                              .table = gpu.Weight(table.tensor(), /*rows=*/true),
                              .streams = gpu.Out(got.tensor())});
        gpu.Finish();
        EXPECT_TRUE(BitEqual(got.span(), want.span())) << d << " " << t;
      }
    }
  }
}

// The sampler's -1 for damaged logits must not read outside the table, and must show.
TEST(CudaEmbed, TokensOutsideTheTableGiveNaN) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const QuantFixture table(random, {WeightFormat::kBf16}, 5, 8);
  GuardBuffer<int32_t> tokens({3}, {-1, 5, 2147483647});
  GuardBuffer<float> got({3, 2, 8}, std::vector<float>(48, 1.0f));
  Mirror gpu;
  EmbedCuda(gpu.ctx(), {.tokens = gpu.In(tokens.tensor()),
                        .table = gpu.Weight(table.tensor(), true),
                        .streams = gpu.Out(got.tensor())});
  gpu.Finish();
  for (const float x : got.span()) EXPECT_TRUE(std::isnan(x));
}

TEST(CudaGatherRows, CopiesExactly) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const int64_t width : {1, 33, 4096, 16384}) {
    for (const int64_t r : {1, 2, 67}) {
      const int64_t t = 19;
      GuardBuffer<float> x({t, 1, width}, random.Normals(t * width)), want({r, 1, width}), got({r, 1, width});
      GuardBuffer<int32_t> rows(r);
      for (int64_t i = 0; i < r; ++i) rows[i] = static_cast<int32_t>(i == 0 ? t - 1 : random.Index(t));
      GatherRows({.reference_ops = true}, {.x = x.tensor(), .rows = rows.tensor(), .out = want.tensor()});
      Mirror gpu;
      GatherRowsCuda(gpu.ctx(),
                     {.x = gpu.In(x.tensor()), .rows = gpu.In(rows.tensor()), .out = gpu.Out(got.tensor())});
      gpu.Finish();
      EXPECT_TRUE(BitEqual(got.span(), want.span())) << width;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
