#include "ops/fill_weight/fill_weight.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/kernels.h"
#include "ops/pack_weight/tight.h"
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
    SetFillScales(&w, std);
    FillWeight(TwoThreads(), {.w = w, .codes = codes.data(), .block_scale = scales.data(), .seed = seed, .std = std});
  }
  QuantTensor w;
  std::vector<uint8_t> codes, scales;
};

class FillWeightFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, FillWeightFormats, ::testing::ValuesIn(ExpertQuantCases()),
                         [](const auto& test) { return test.param.name(); });

// Mean 0, the requested deviation, and every value within the format's rounding of its exact value: half a step of E2M1
// is at most 1/4 of a value (or a sixth of the block's largest over 4), of E4M3 1/16, of BF16 1/256.
TEST_P(FillWeightFormats, HasTheAskedForDistribution) {
  constexpr float kStd = 0.02f;
  const Filled f(GetParam(), 130, 256, 5, kStd);
  double sum = 0, square = 0, error = 0;
  for (int64_t n = 0; n < 130; ++n) {
    for (int64_t k = 0; k < 256; ++k) {
      const int64_t at = n * 256 + k;
      const bool tight = IsTight(GetParam().format);
      const double spread = tight ? std::ldexp(1.32288, -FillShift(5, static_cast<uint64_t>(at / 32))) : 1;
      const double v = WeightValue(f.w, n, k), want = spread * kStd * FillValue(5, static_cast<uint64_t>(at));
      sum += v;
      square += v * v;
      error += (v - want) * (v - want);
    }
  }
  constexpr double kCount = 130 * 256;
  EXPECT_LT(std::fabs(sum / kCount), 5 * kStd / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(square / kCount), kStd, (IsTight(GetParam().format) ? 0.05 : 0.02) * kStd);
  const bool fp4 = InfoOf(GetParam().format).bits == 4;
  EXPECT_LT(std::sqrt(error / kCount), (fp4 ? 0.15 : 0.04) * kStd);
}

TEST_P(FillWeightFormats, SeedsDifferAndRepeat) {
  const Filled a(GetParam(), 16, 64, 1), b(GetParam(), 16, 64, 1), c(GetParam(), 16, 64, 2);
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_NE(a.codes, c.codes);
}

// The kernels give the reference's bits for all numbers of columns after the last run of 16, and all addresses.
TEST_P(FillWeightFormats, KernelsGiveTheBitsOfTheReference) {
  const QuantCase kind = GetParam();
  const bool fp4 = InfoOf(kind.format).bits == 4;
  ForEachKernel<FillWeightArgs>(DSV4_KERNELS(FillWeightCpu), [&](auto run) {
    for (const int64_t cols : {int64_t{64}, int64_t{4096}, fp4 ? int64_t{96} : int64_t{77}}) {
      for (const float std : {1.0f, 0.015625f, 3e-5f}) {
        const auto filled = [&](auto fill, const ExecContext& ctx) {
          QuantTensor w{.format = kind.format, .rows = 129, .cols = cols, .scale_dtype = kind.scale_dtype};
          std::vector<uint8_t> bytes(static_cast<size_t>(1 + 129 * (w.row_bytes() + cols)), 0xEE);
          uint8_t* codes = bytes.data() + 1;  // unaligned, as in a file
          uint8_t* scales = codes + 129 * w.row_bytes();
          w.codes = codes;
          w.block_scale = scales;
          SetFillScales(&w, std);
          fill(ctx, FillWeightArgs{.w = w, .codes = codes, .block_scale = scales, .seed = 11, .std = std});
          return bytes;
        };
        EXPECT_TRUE(filled(run, TwoThreads()) == filled(FillWeight, Reference())) << "K " << cols << " std " << std;
      }
    }
  });
}

// Matrices made for tight tiles fit them, from the stated base, and have nine scales, as the released Flash. For some
// deviations the largest scale is rare.
TEST(FillWeight, TightFormatsFillNineExponents) {
  for (const QuantCase kind : TightQuantCases()) {
    for (const float std : {1.0f, 1 / 64.0f, 0.0221f, 3e-5f}) {
      const Filled f(kind, 256, 1024, 3, std);
      QuantTensor rows = f.w;
      rows.format = FormatOfRows(kind.format);
      EXPECT_EQ(FindTightBase(rows), FillTightBase(std)) << kind.name() << " " << std;
      std::array<int64_t, 16> seen{};
      for (int64_t n = 0; n < 256; ++n) {
        for (int64_t k = 0; k < 1024; k += 32) {
          const float scale = BlockScale(f.w, n, k) * f.w.global_scale;
          ++seen.at(static_cast<size_t>(std::ilogb(scale) - FillTightBase(std)));
        }
      }
      for (size_t e = 0; e < 16; ++e) {
        if (e == 8 && std != 0.0221f) continue;
        EXPECT_EQ(seen[e] > 0, e <= 8) << kind.name() << " " << std << " " << e;
      }
      EXPECT_LT(*std::max_element(seen.begin(), seen.end()), 256 * 32 * 6 / 10) << "most blocks have one scale";
    }
  }
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
  for (const QuantCase kind : ExpertQuantCases()) {
    SCOPED_TRACE(kind.name());
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {130, 256}, {257, 96}}) {
      QuantTensor w{.format = kind.format, .rows = rows, .cols = cols, .scale_dtype = kind.scale_dtype};
      SetFillScales(&w, 0.03f);
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
