#include "ops/fill_weight/fill_weight.h"

#include <cmath>

#include "ops/kernels.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "tensor/codec/weight.h"

DSV4_DECLARE_KERNELS(FillWeightCpu, FillWeightArgs)

namespace dsv4::test {
namespace {

struct Filled {
  explicit Filled(QuantCase kind, int64_t rows, int64_t cols, uint64_t seed, float std = 0.02f) {
    w = {.format = kind.format, .rows = rows, .cols = cols, .scale_dtype = kind.scale_dtype};
    codes.assign(static_cast<size_t>(rows * w.row_bytes()), 0xEE);
    scales.assign(static_cast<size_t>(rows * cols), 0xEE);
    w.codes = codes.data();
    w.block_scale = scales.data();
    if (kind.format == WeightFormat::kNvfp4) w.global_scale = FillGlobalScale(std);
    FillWeight(TwoThreads(), {.w = w, .codes = codes.data(), .block_scale = scales.data(), .seed = seed, .std = std});
  }
  QuantTensor w;
  std::vector<uint8_t> codes, scales;
};

class FillWeightFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, FillWeightFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

// Mean 0, the asked-for deviation, and every value within the format's rounding of the value it stands for: half a step
// of E2M1 is at most 1/4 of a value (or a sixth of the block's largest over 4), of E4M3 1/16, of BF16 1/256.
TEST_P(FillWeightFormats, HasTheAskedForDistribution) {
  constexpr float kStd = 0.02f;
  const Filled f(GetParam(), 130, 256, 5, kStd);
  double sum = 0, square = 0, error = 0;
  for (int64_t n = 0; n < 130; ++n) {
    for (int64_t k = 0; k < 256; ++k) {
      const double v = WeightValue(f.w, n, k), want = kStd * FillValue(5, static_cast<uint64_t>(n * 256 + k));
      sum += v;
      square += v * v;
      error += (v - want) * (v - want);
    }
  }
  constexpr double kCount = 130 * 256;
  EXPECT_LT(std::fabs(sum / kCount), 5 * kStd / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(square / kCount), kStd, 0.02 * kStd);
  const bool fp4 = GetParam().format == WeightFormat::kNvfp4 || GetParam().format == WeightFormat::kMxfp4;
  EXPECT_LT(std::sqrt(error / kCount), (fp4 ? 0.15 : 0.04) * kStd);
}

TEST_P(FillWeightFormats, SeedsDifferAndRepeat) {
  const Filled a(GetParam(), 16, 64, 1), b(GetParam(), 16, 64, 1), c(GetParam(), 16, 64, 2);
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_NE(a.codes, c.codes);
}

// The kernels give the reference's bits, whatever the columns behind the last run of 16 and the addresses.
TEST_P(FillWeightFormats, KernelsGiveTheBitsOfTheReference) {
  const QuantCase kind = GetParam();
  const bool fp4 = kind.format == WeightFormat::kNvfp4 || kind.format == WeightFormat::kMxfp4;
  ForEachKernel<FillWeightArgs>(DSV4_KERNELS(FillWeightCpu), [&](auto run) {
    for (const int64_t cols : {int64_t{64}, int64_t{4096}, fp4 ? int64_t{96} : int64_t{77}}) {
      for (const float std : {1.0f, 0.015625f, 3e-5f}) {
        const auto filled = [&](auto fill, const ExecContext& ctx) {
          QuantTensor w{.format = kind.format, .rows = 129, .cols = cols, .scale_dtype = kind.scale_dtype};
          std::vector<uint8_t> bytes(static_cast<size_t>(1 + 129 * (w.row_bytes() + cols)), 0xEE);
          uint8_t* codes = bytes.data() + 1;  // as unaligned as in a file
          uint8_t* scales = codes + 129 * w.row_bytes();
          w.codes = codes;
          w.block_scale = scales;
          if (kind.format == WeightFormat::kNvfp4) w.global_scale = FillGlobalScale(std);
          fill(ctx, FillWeightArgs{.w = w, .codes = codes, .block_scale = scales, .seed = 11, .std = std});
          return bytes;
        };
        EXPECT_TRUE(filled(run, TwoThreads()) == filled(FillWeight, Reference())) << "K " << cols << " std " << std;
      }
    }
  });
}

void FillWeightOnGpu(const ExecContext&, const FillWeightArgs& a) {
  Mirror gpu;
  const auto out = [&](uint8_t* bytes, int64_t count) {
    return static_cast<uint8_t*>(gpu.Out({bytes, DType::kU8, {count}}).data);
  };
  FillWeightArgs b = a;
  b.codes = out(a.codes, a.w.rows * a.w.row_bytes()), b.block_scale = out(a.block_scale, FileScaleBytes(a.w));
  b.w.codes = b.codes, b.w.block_scale = b.block_scale;
  FillWeight(gpu.ctx(), b);
  gpu.Finish();
}

DSV4_DEVICE_TEST(FillWeight, EqualsTheReferenceBitForBit) {
  for (const QuantCase kind : AllQuantCases()) {
    SCOPED_TRACE(kind.name());
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {130, 256}, {257, 96}}) {
      QuantTensor w{.format = kind.format, .rows = rows, .cols = cols, .scale_dtype = kind.scale_dtype};
      if (kind.format == WeightFormat::kNvfp4) w.global_scale = FillGlobalScale(0.03f);
      GuardBuffer<uint8_t> want(rows * w.row_bytes()), want_scales(FileScaleBytes(w));
      const auto args = [&w = w](GuardBuffer<uint8_t>& codes, GuardBuffer<uint8_t>& scales) {
        FillWeightArgs a{.w = w, .codes = codes.data(), .block_scale = scales.data(), .seed = 9, .std = 0.03f};
        a.w.codes = codes.data();
        a.w.block_scale = scales.data();
        return a;
      };
      FillWeight(Reference(), args(want, want_scales));
      for (const auto& at : Places(on, FillWeight, FillWeightOnGpu)) {
        GuardBuffer<uint8_t> codes(want.size()), scales(want_scales.size());
        at.run(args(codes, scales));
        EXPECT_EQ(codes.values(), want.values()) << at.name;
        EXPECT_EQ(scales.values(), want_scales.values()) << at.name;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
