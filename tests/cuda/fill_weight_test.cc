#include "ops/fill_weight/fill_weight.h"

#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void FillWeightCuda(const ExecContext& ctx, const FillWeightArgs& args);
}

namespace dsv4::test {
namespace {

TEST(CudaFillWeight, EqualsTheReferenceBitForBit) {
  DSV4_GPU_OR_SKIP();
  for (const QuantCase kind : AllQuantCases()) {
    SCOPED_TRACE(kind.name());
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {130, 256}, {257, 96}}) {
      QuantTensor w{.format = kind.format, .rows = rows, .cols = cols, .scale_dtype = kind.scale_dtype};
      if (kind.format == WeightFormat::kNvfp4) w.global_scale = FillGlobalScale(0.03f);
      const int64_t scale_bytes = kind.format == WeightFormat::kNvfp4    ? rows * cols / 16
                                  : kind.format == WeightFormat::kMxfp4 ? rows * cols / 32
                                  : kind.format == WeightFormat::kFp8Block
                                      ? CeilDiv(rows, 128) * CeilDiv(cols, 128) * SizeOf(kind.scale_dtype)
                                      : 0;
      const auto fill = [&](uint8_t* codes, uint8_t* scales) {
        FillWeightArgs args{.w = w, .codes = codes, .block_scale = scales, .seed = 9, .std = 0.03f};
        args.w.codes = codes;
        args.w.block_scale = scales;
        return args;
      };
      GuardBuffer<uint8_t> codes(rows * w.row_bytes()), scales(scale_bytes), want_codes(rows * w.row_bytes()), want_scales(scale_bytes);
      FillWeight({.reference_ops = true}, fill(want_codes.data(), want_scales.data()));
      Mirror gpu;
      FillWeightCuda(gpu.ctx(), fill(static_cast<uint8_t*>(gpu.Out(codes.tensor()).data), static_cast<uint8_t*>(gpu.Out(scales.tensor()).data)));
      gpu.Finish();
      EXPECT_EQ(codes.values(), want_codes.values());
      EXPECT_EQ(scales.values(), want_scales.values());
    }
  }
}

}  // namespace
}  // namespace dsv4::test
