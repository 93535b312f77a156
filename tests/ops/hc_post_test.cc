#include "ops/hc_post/hc_post.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/hc_fixture.h"
#include "support/random.h"

DSV4_DECLARE_KERNELS(HcPostCpu, HcPostArgs)

namespace dsv4::test {
namespace {

void HcPostOnGpu(const ExecContext&, const HcPostArgs& a) {
  Mirror gpu;
  HcPost(gpu.ctx(), {.y = gpu.In(a.y), .post = gpu.In(a.post), .comb = gpu.In(a.comb), .streams = gpu.Out(a.streams)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(HcPost, MatchesTheFormulaInFloat64) {
  Random random(1);
  for (const int64_t h : {1, 2, 4, 8}) {
    for (const int64_t d : {1, 7, 64}) {
      const int64_t t = 9;
      GuardBuffer<float> y(Shape{t, d}, random.Hostiles(t * d)), post(Shape{t, h}, random.Uniforms(t * h, 0, 2));
      GuardBuffer<float> comb(Shape{t, h, h}, random.Uniforms(t * h * h, 0, 1));
      const std::vector<float> before = random.Normals(t * h * d, 30);
      std::vector<double> want, bound;
      for (int64_t r = 0; r < t; ++r) {
        for (int64_t k = 0; k < h; ++k) {
          for (int64_t i = 0; i < d; ++i) {
            double sum = static_cast<double>(post[r * h + k]) * y[r * d + i], size = std::fabs(sum);
            for (int64_t j = 0; j < h; ++j) {
              const double term = static_cast<double>(comb[(r * h + j) * h + k]) *
                                  before[static_cast<size_t>((r * h + j) * d + i)];
              sum += term;
              size += std::fabs(term);
            }
            want.push_back(sum);
            bound.push_back(Gamma(h + 1) * size + 0x1p-140);  // each term has at most h + 1 roundings
          }
        }
      }
      for (const auto& c : Places(on, HcPost, HcPostOnGpu)) {
        GuardBuffer<float> streams(Shape{t, h, d}, before);
        c.run({.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = streams.tensor()});
        EXPECT_TRUE(WithinBounds(streams.span(), want, bound)) << c.name << ", H " << h << ", D " << d;
      }
    }
  }
}

const std::vector<Kernel<HcPostArgs>> kHcPostKernels = DSV4_KERNELS(HcPostCpu);

TEST(HcPost, EveryKernelHasTheReferencesBits) {
  Random random(2);
  for (const int64_t d : {1, 7, 64, 515, 1030}) {
    const int64_t t = 3, h = 4;
    GuardBuffer<float> y(Shape{t, d}, random.Normals(t * d)), post(Shape{t, h}, random.Uniforms(t * h, 0, 2));
    GuardBuffer<float> comb(Shape{t, h, h}, random.Uniforms(t * h * h, 0, 1));
    const std::vector<float> before = random.Normals(t * h * d, 30);
    const auto run = [&](const auto& kernel, const ExecContext& ctx) {
      GuardBuffer<float> streams(Shape{t, h, d}, before);
      kernel(ctx,
             HcPostArgs{.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = streams.tensor()});
      return std::vector<float>(streams.span().begin(), streams.span().end());
    };
    const std::vector<float> want = run(HcPost, Reference());
    ForEachKernel(kHcPostKernels, [&](const auto& kernel) {
      for (const ExecContext& ctx : ThreadCounts()) EXPECT_TRUE(BitEqual(run(kernel, ctx), want)) << d;
    });
  }
}

// The orientation of comb: a matrix that moves stream 0 to stream 1, 1 to 2, 2 to 3 and 3 to 0. Its transpose moves
// them the other way.
DSV4_DEVICE_TEST(HcPost, Lesson08CombMovesSourceToDestination) {
  GuardBuffer<float> y(Shape{1, 2}, {0, 0}), post(Shape{1, 4}, {1, 1, 1, 1}),
      comb(Shape{1, 4, 4}, std::vector<float>(16, 0));
  for (int64_t j = 0; j < 4; ++j) comb[j * 4 + (j + 1) % 4] = 1;  // [source, destination]
  for (const auto& c : Places(on, HcPost, HcPostOnGpu)) {
    GuardBuffer<float> streams(Shape{1, 4, 2}, {10, 11, 20, 21, 30, 31, 40, 41});
    c.run({.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = streams.tensor()});
    EXPECT_TRUE(BitEqual(streams.span(), std::vector<float>{40, 41, 10, 11, 20, 21, 30, 31})) << c.name;
  }
}

DSV4_DEVICE_TEST(HcPost, WritesTheOutputWithItsOwnWeightIntoEveryStream) {
  GuardBuffer<float> y(Shape{1, 2}, {3, -1}), post(Shape{1, 4}, {0, 1, 2, 0.5f}),
      comb(Shape{1, 4, 4}, std::vector<float>(16, 0));
  for (const auto& c : Places(on, HcPost, HcPostOnGpu)) {
    GuardBuffer<float> streams(Shape{1, 4, 2}, std::vector<float>(8, 100));
    c.run({.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = streams.tensor()});
    EXPECT_TRUE(Near(streams.span(), std::vector<float>{0, 0, 3, -1, 6, -2, 1.5f, -0.5f}, 0)) << c.name;
  }
}

// Sums of H + 1 products, fused or not: each side is off by gamma_{H+1} of the sum of magnitudes, here <= 6 (H + 1) 6.
DSV4_DEVICE_TEST(HcPost, MatchesReference) {
  Random random(5);
  for (const HcCase& c : kHcCases) {
    SCOPED_TRACE(c.name());
    GuardBuffer<float> y({c.t, c.d}, random.Normals(c.t * c.d)), post({c.t, c.h}, random.Normals(c.t * c.h)),
        comb({c.t, c.h, c.h}, random.Normals(c.t * c.h * c.h)), want({c.t, c.h, c.d}, random.Normals(c.t * c.h * c.d));
    const std::vector<float> before = want.values();
    HcPost(Reference(), {.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = want.tensor()});
    ForEachKernel(on, kHcPostKernels, HcPostOnGpu, [&](const auto run) {
      GuardBuffer<float> got({c.t, c.h, c.d}, before);
      run(TwoThreads(), {.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = got.tensor()});
      EXPECT_TRUE(Near(got.span(), want.span(), 2 * Gamma(c.h + 1) * 36 * static_cast<double>(c.h + 1)));
    });
  }
}

DSV4_DEVICE_TEST(HcPost, ARowDoesNotDependOnItsBatch) {
  Random random(2);
  const int64_t t = 20, h = 4, d = 33;
  GuardBuffer<float> y(Shape{t, d}, random.Normals(t * d)), post(Shape{t, h}, random.Normals(t * h)),
      comb(Shape{t, h, h}, random.Normals(t * h * h));
  const std::vector<float> before = random.Normals(t * h * d);
  for (const auto& c : Places(on, HcPost, HcPostOnGpu)) {
    GuardBuffer<float> all(Shape{t, h, d}, before);
    c.run({.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = all.tensor()});
    for (const int64_t r : {0, 7, 19}) {
      GuardBuffer<float> one(Shape{1, h, d}, {before.begin() + r * h * d, before.begin() + (r + 1) * h * d});
      c.run({.y = {y.row(r).data(), DType::kF32, {1, d}},
             .post = {post.row(r).data(), DType::kF32, {1, h}},
             .comb = {comb.row(r).data(), DType::kF32, {1, h, h}},
             .streams = one.tensor()});
      EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << c.name;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
