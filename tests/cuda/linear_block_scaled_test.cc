// The conversions around cuBLASLt's NVFP4 product. The product itself needs a Blackwell GPU and has never been run.
#include "ops/linear/block_scaled/block_scaled.h"

#include "ops/round_activation/round_activation.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/random.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"

namespace dsv4::test {
namespace {

Tensor Bytes(std::vector<uint8_t>& bytes) { return {bytes.data(), DType::kU8, {static_cast<int64_t>(bytes.size())}}; }

TEST(CudaBlockScaled, UnpackedWeightsAreTheFilesCodesAndReorderedScales) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{16, 64}, {128, 256}, {144, 320}, {512, 1024}}) {
    const QuantFixture fixture(random, {WeightFormat::kNvfp4}, rows, cols);
    const QuantTensor& w = fixture.tensor();
    const int64_t blocks = cols / kNvfp4BlockSize;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * cols / 2), 0xEE),
        scales(static_cast<size_t>(BlockScaleBytes(rows, blocks)), 0xEE);
    Mirror gpu;
    const QuantTensor tiles = gpu.Weight(w);
    const BlockScaledOperand out{static_cast<uint8_t*>(gpu.Out(Bytes(codes)).data),
                                 static_cast<uint8_t*>(gpu.Out(Bytes(scales)).data)};
    UnpackBlockScaled(gpu.ctx(), tiles, out);
    gpu.Finish();
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows * blocks; ++i) {
      uint64_t have = 0, file = 0;
      std::memcpy(&have, codes.data() + 8 * i, 8);
      std::memcpy(&file, w.codes + 8 * i, 8);
      wrong += have != CodesUnderScale(file, w.block_scale[i]);
    }
    EXPECT_EQ(wrong, 0);
    std::vector<uint8_t> want(scales.size(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t b = 0; b < blocks; ++b)
        want[static_cast<size_t>(BlockScaleOffset(r, b, blocks))] = w.block_scale[r * blocks + b];
    }
    EXPECT_TRUE(scales == want) << rows << " x " << cols;
  }
}

TEST(CudaBlockScaled, QuantisedInputsAreThoseOfRoundActivation) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const auto& [t, k] : {std::pair<int64_t, int64_t>{1, 64}, {128, 128}, {131, 4096}, {300, 7168}}) {
    std::vector<float> values;
    for (int64_t r = 0; r < t; ++r) {
      const std::vector<float> row = random.Normals(k, r % 2 ? 1e-3f : 1e3f);
      values.insert(values.end(), row.begin(), row.end());
    }
    if (t > 7) std::fill(values.begin() + 7 * k, values.begin() + 8 * k, 0.0f);
    const int64_t blocks = k / kNvfp4BlockSize;
    GuardBuffer<float> x(Shape{t, k}, values), want(Shape{t, k}), row_scale(Shape{t});
    RoundActivation({.reference_ops = true}, {.x = x.tensor(), .y = want.tensor(), .mode = ActivationDtype::kNvfp4});
    std::vector<uint8_t> codes(static_cast<size_t>(t * k / 2), 0xEE),
        scales(static_cast<size_t>(BlockScaleBytes(t, blocks)), 0xEE);
    Mirror gpu;
    const BlockScaledOperand out{static_cast<uint8_t*>(gpu.Out(Bytes(codes)).data),
                                 static_cast<uint8_t*>(gpu.Out(Bytes(scales)).data)};
    QuantiseBlockScaled(gpu.ctx(), gpu.In(x.tensor()).f32(), t, k, out, gpu.Out(row_scale.tensor()).f32());
    gpu.Finish();
    int64_t wrong = 0;
    for (int64_t r = 0; r < t; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const float scale = E4m3ToF32(scales[static_cast<size_t>(BlockScaleOffset(r, c / kNvfp4BlockSize, blocks))]) *
                            row_scale.tensor().f32()[r];
        wrong += E2m1ToF32(GetNibble(codes.data() + r * k / 2, c)) * scale != want.tensor().f32()[r * k + c];
      }
    }
    EXPECT_EQ(wrong, 0) << t << " x " << k;
  }
}

TEST(CudaBlockScaled, OtherGpusKeepTheirPath) {
  DSV4_GPU_OR_SKIP();
  if (Gpu()->name().find("H100") == std::string::npos && Gpu()->name().find("H200") == std::string::npos)
    GTEST_SKIP() << "not Hopper";
  Random random(3);
  const QuantFixture fixture(random, {WeightFormat::kNvfp4}, 128, 256);
  Mirror gpu;
  gpu.ctx().regime = Regime::kLongPrompt;
  EXPECT_FALSE(BlockScaledLinearTakes(gpu.ctx(), gpu.Weight(fixture.tensor())));
}

}  // namespace
}  // namespace dsv4::test
