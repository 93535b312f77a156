#include "ops/hc_pre/hc_pre.h"

#include <cmath>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_KERNELS(HcPreCpu, HcPreArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<HcPreArgs>> kHcPreKernels = DSV4_KERNELS(HcPreCpu);

struct Site {
  Site(Random& random, WeightFormat format, int64_t num_tokens, int64_t h, int64_t d)
      : streams({num_tokens, h, d}, random.Normals(num_tokens * h * d)),
        fn(random, {format}, (2 + h) * h, h * d),
        base({(2 + h) * h}, random.Normals((2 + h) * h)),
        scale({3}, {0.05f, 0.03f, 0.08f}) {}
  HcPreArgs Args(GuardBuffer<float>& x, GuardBuffer<float>& post, GuardBuffer<float>& comb) {
    return {.streams = streams.tensor(),
            .fn = fn.tensor(),
            .base = base.tensor(),
            .scale = scale.tensor(),
            .iters = 20,
            .eps = 1e-6f,
            .norm_eps = 1e-6f,
            .x = x.tensor(),
            .post = post.tensor(),
            .comb = comb.tensor()};
  }
  GuardBuffer<float> streams;
  QuantFixture fn;
  GuardBuffer<float> base, scale;
};

struct Outputs {
  Outputs(int64_t t, int64_t h, int64_t d) : x({t, d}), post({t, h}), comb({t, h, h}) {}
  GuardBuffer<float> x, post, comb;
};

// m = rho (fn X) is off by gamma_n rho sum |fn| |X|, n = K / 8 + 40 (the product's and rho's roundings). A row X / rho
// has root mean square 1, |fn| <= 6 and |X| rho <= 6 sqrt(..): rho sum |fn| |X| <= K in these data, so |dm| <= K gamma_n.
// A logit adds scale |dm| <= 0.08 |dm| and 3 roundings of |logit| <= 10. Sigmoid has slope 1/4. Sinkhorn steps are
// non-expansive in log space (Hilbert's metric): an entry's relative error is at most 4 times the logits' error, plus
// 6 roundings for each of 39 normalisations. x is a sum of h products with |stream| <= 6 and pre <= 1.
double MixTolerance(int64_t k) {
  const double logit = 0.08 * static_cast<double>(k) * Gamma(CeilDiv(k, 8) + 40) + Gamma(30);
  return 4 * logit + Gamma(6 * 39);
}

TEST(HcPre, MatchesReference) {
  Random random(1);
  struct Case {
    int64_t t, h, d;
  };
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case c :
         {Case{1, 4, 256}, {1, 1, 5}, {3, 4, 33}, {17, 2, 24}, {40, 4, 64}, {2, 8, 16}, {67, 3, 7}}) {
      SCOPED_TRACE(StrCat("T ", c.t, " H ", c.h, " D ", c.d));
      Site site(random, format, c.t, c.h, c.d);
      Outputs want(c.t, c.h, c.d);
      HcPre(Reference(), site.Args(want.x, want.post, want.comb));
      const double tolerance = MixTolerance(c.h * c.d);
      ForEachKernel(kHcPreKernels, [&](const auto run) {
        Outputs got(c.t, c.h, c.d);
        run(TwoThreads(), site.Args(got.x, got.post, got.comb));
        EXPECT_TRUE(Near(got.comb.span(), want.comb.span(), 0, tolerance));
        EXPECT_TRUE(Near(got.post.span(), want.post.span(), tolerance));
        EXPECT_TRUE(Near(got.x.span(), want.x.span(), 6 * static_cast<double>(c.h) * tolerance));
      });
    }
  }
}

TEST(HcPre, TokensDoNotDependOnTheirBatch) {
  Random random(2);
  const int64_t t = 67, h = 4, d = 40;
  Site site(random, WeightFormat::kF32, t, h, d);
  ForEachKernel(kHcPreKernels, [&](const auto run) {
    Outputs all(t, h, d);
    run({}, site.Args(all.x, all.post, all.comb));
    for (const ExecContext& ctx : ThreadCounts()) {
      Outputs again(t, h, d);
      run(ctx, site.Args(again.x, again.post, again.comb));
      EXPECT_TRUE(BitEqual(again.x.span(), all.x.span()));
      EXPECT_TRUE(BitEqual(again.comb.span(), all.comb.span()));
      for (const int64_t i : {0, 1, 40, 66}) {
        Outputs one(1, h, d);
        HcPreArgs args = site.Args(one.x, one.post, one.comb);
        args.streams = {site.streams.row(i).data(), DType::kF32, {1, h, d}};
        run(ctx, args);
        EXPECT_TRUE(BitEqual(one.x.span(), all.x.row(i)));
        EXPECT_TRUE(BitEqual(one.post.span(), all.post.row(i)));
        EXPECT_TRUE(BitEqual(one.comb.span(), all.comb.row(i)));
      }
    }
  });
}

// Columns (over the source) end with a normalisation; rows are close to 1 after 20 iterations.
TEST(HcPre, CombIsDoublyStochastic) {
  Random random(3);
  const int64_t t = 9, h = 4, d = 32;
  Site site(random, WeightFormat::kF32, t, h, d);
  ForEachKernel(kHcPreKernels, [&](const auto run) {
    Outputs got(t, h, d);
    run({}, site.Args(got.x, got.post, got.comb));
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t a = 0; a < h; ++a) {
        double row = 0, column = 0;
        for (int64_t b = 0; b < h; ++b) {
          row += got.comb[(i * h + a) * h + b];
          column += got.comb[(i * h + b) * h + a];
        }
        EXPECT_NEAR(column, 1, 1e-5);
        EXPECT_NEAR(row, 1, 1e-3);
      }
    }
  });
}

}  // namespace
}  // namespace dsv4::test
