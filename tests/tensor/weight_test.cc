#include "tensor/codec/weight.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/quant_fixture.h"
#include "support/random.h"
#include "tensor/tensor.h"

namespace dsv4 {
namespace {

// Two rows of 32 columns in NVFP4. A code's number is its E2M1 code: 2 is 1.0, 7 is 6.0, 10 is -1.0.
struct NvfpExample {
  std::vector<uint8_t> codes = std::vector<uint8_t>(32);   // [2, 16] bytes
  std::vector<uint8_t> scales = {0x38, 0x40, 0x30, 0x48};  // [2, 2] E4M3: 1, 2; 0.5, 4
  QuantTensor w;

  NvfpExample() {
    codes[0] = 0x21;        // row 0: column 0 = 0.5, column 1 = 1
    codes[8] = 0x07;        // row 0: column 16 = 6
    codes[16] = 0x0A;       // row 1: column 0 = -1
    codes[16 + 15] = 0x50;  // row 1: column 31 = 3
    w = {.format = WeightFormat::kNvfp4,
         .rows = 2,
         .cols = 32,
         .codes = codes.data(),
         .block_scale = scales.data(),
         .global_scale = 0.25f};
  }
};

// The prototype read packed weights as K-major, and q_a had width 3584 instead of 1536.
TEST(Weight, Lesson01RowsOfCodesAreOutputs) {
  const NvfpExample e;
  EXPECT_EQ(e.w.row_bytes(), 16);
  EXPECT_EQ(CodeValue(e.w, 0, 0), 0.5f);
  EXPECT_EQ(CodeValue(e.w, 0, 1), 1.0f);
  EXPECT_EQ(CodeValue(e.w, 0, 16), 6.0f);
  EXPECT_EQ(CodeValue(e.w, 1, 0), -1.0f);
  EXPECT_EQ(CodeValue(e.w, 1, 30), 0.0f);
  EXPECT_EQ(CodeValue(e.w, 1, 31), 3.0f);
}

// It transposed block scales that already had the layout [N, K/16].
TEST(Weight, Lesson02ScalesFollowTheRows) {
  const NvfpExample e;
  EXPECT_EQ(BlockScale(e.w, 0, 15), 1.0f);
  EXPECT_EQ(BlockScale(e.w, 0, 16), 2.0f);
  EXPECT_EQ(BlockScale(e.w, 1, 0), 0.5f);
  EXPECT_EQ(BlockScale(e.w, 1, 31), 4.0f);
}

// It dropped weight_scale_2 everywhere: the outputs were plausible but had the wrong magnitude.
TEST(Weight, Lesson03GlobalScaleMultiplies) {
  const NvfpExample e;
  EXPECT_EQ(WeightValue(e.w, 0, 16), 6.0 * 2.0 * 0.25);
  EXPECT_EQ(WeightValue(e.w, 1, 0), -1.0 * 0.5 * 0.25);
  EXPECT_EQ(WeightValue(e.w, 1, 31), 3.0 * 4.0 * 0.25);
}

TEST(Weight, Mxfp4HasOnePowerOfTwoPer32Columns) {
  std::vector<uint8_t> codes(64);                          // [2, 32] bytes = 64 columns
  const std::vector<uint8_t> scales = {127, 130, 120, 0};  // [2, 2] E8M0: 1, 8; 2^-7, 2^-127
  codes[16] = 0x0F;                                        // row 0, column 32: -6
  codes[32] = 0x30;                                        // row 1, column 1: 1.5
  codes[63] = 0x20;                                        // row 1, column 63: 1
  const QuantTensor w{
      .format = WeightFormat::kMxfp4, .rows = 2, .cols = 64, .codes = codes.data(), .block_scale = scales.data()};
  EXPECT_EQ(WeightValue(w, 0, 32), -48.0);
  EXPECT_EQ(WeightValue(w, 1, 1), 1.5 * 0x1p-7);
  EXPECT_EQ(WeightValue(w, 1, 63), 0x1p-127);
  EXPECT_EQ(BlockScale(w, 0, 31), 1.0f);
}

TEST(Weight, Fp8ScalesCover128By128AndTheEdgeBlocks) {
  const int64_t rows = 130, cols = 200;                                // a grid of 2 x 2
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols), 0x38);  // all 1
  std::vector<uint8_t> bytes(1 + 16);
  const float scales[] = {1.0f, 2.0f, 3.0f, 5.0f};
  std::memcpy(bytes.data() + 1, scales, 16);  // unaligned, as in a mapped file
  QuantTensor w{.format = WeightFormat::kFp8Block,
                .rows = rows,
                .cols = cols,
                .codes = codes.data(),
                .block_scale = bytes.data() + 1,
                .scale_dtype = DType::kF32};
  EXPECT_EQ(WeightValue(w, 0, 0), 1.0);
  EXPECT_EQ(WeightValue(w, 127, 127), 1.0);
  EXPECT_EQ(WeightValue(w, 127, 128), 2.0);
  EXPECT_EQ(WeightValue(w, 128, 127), 3.0);
  EXPECT_EQ(WeightValue(w, 129, 199), 5.0);

  const std::vector<uint8_t> powers = {127, 128, 126, 129};
  w.block_scale = powers.data();
  w.scale_dtype = DType::kF8E8M0;
  EXPECT_EQ(WeightValue(w, 127, 127), 1.0);
  EXPECT_EQ(WeightValue(w, 0, 199), 2.0);
  EXPECT_EQ(WeightValue(w, 128, 0), 0.5);
  EXPECT_EQ(WeightValue(w, 128, 128), 4.0);
}

TEST(Weight, AViewThatStartsInsideABlockKeepsTheGridOfItsTensor) {
  std::vector<uint8_t> codes(100 * 128, 0x38);
  const std::vector<uint8_t> powers = {127, 130};
  const QuantTensor w{.format = WeightFormat::kFp8Block,
                      .rows = 100,
                      .cols = 128,
                      .codes = codes.data(),
                      .block_scale = powers.data(),
                      .scale_dtype = DType::kF8E8M0,
                      .scale_row_offset = 96};
  EXPECT_EQ(WeightValue(w, 31, 0), 1.0);  // row 127 of the tensor
  EXPECT_EQ(WeightValue(w, 32, 0), 8.0);  // row 128
}

TEST(Weight, UnquantisedFormatsReadUnalignedElements) {
  uint8_t bytes[17] = {};
  const float f[] = {1.5f, -2.0f, 0x1p-140f, 3.0f};
  std::memcpy(bytes + 1, f, 16);
  const QuantTensor w{.format = WeightFormat::kF32, .rows = 2, .cols = 2, .codes = bytes + 1};
  EXPECT_EQ(WeightValue(w, 0, 1), -2.0);
  EXPECT_EQ(WeightValue(w, 1, 0), 0x1p-140);
  const uint16_t h[] = {0x3FC0, 0xC000, 0x0001, 0x4040};
  std::memcpy(bytes + 1, h, 8);
  const QuantTensor b{.format = WeightFormat::kBf16, .rows = 2, .cols = 2, .codes = bytes + 1};
  EXPECT_EQ(WeightValue(b, 0, 0), 1.5);
  EXPECT_EQ(WeightValue(b, 1, 1), 3.0);
  EXPECT_EQ(BlockScale(b, 1, 1), 1.0f);
}

TEST(Weight, NanScalesShowInTheValue) {
  const NvfpExample e;
  std::vector<uint8_t> scales(4, 0x7F);
  QuantTensor w = e.w;
  w.block_scale = scales.data();
  EXPECT_TRUE(std::isnan(WeightValue(w, 0, 1)));
}

TEST(Weight, RandomFixturesAreFiniteAndOfAboutUnitSize) {
  test::Random random(8);
  for (const test::QuantCase& kind : test::AllQuantCases()) {
    const test::QuantFixture q(random, kind, 7, 384);
    double square = 0;
    for (const double v : q.Decoded()) square += v * v;
    const double rms = std::sqrt(square / (7 * 384));
    EXPECT_TRUE(rms > 0.1 && rms < 10) << kind.name() << " " << rms;
  }
}

TEST(DTypes, SizesAndNames) {
  for (const DType t : {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E4M3, DType::kF8E8M0, DType::kU8, DType::kI8,
                        DType::kI32, DType::kI64}) {
    EXPECT_GT(SizeOf(t), 0);
    EXPECT_NE(NameOf(t), "?");
  }
  EXPECT_EQ(NameOf(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(SizeOf(DType::kI64), 8);
}

TEST(Tensors, ShapesHeadsAndReshapes) {
  float data[24] = {};
  const Tensor t{data, DType::kF32, {2, 3, 4}};
  EXPECT_EQ(t.num_elements(), 24);
  EXPECT_EQ(t.num_bytes(), 96);
  EXPECT_EQ(t.shape.ToString(), "[2, 3, 4]");
  EXPECT_EQ(t.Reshaped({6, 4}).dim(1), 4);
  EXPECT_EQ(t.Head(1).shape, (Shape{1, 3, 4}));
  EXPECT_EQ(t.Head(0).num_elements(), 0);
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_FALSE(static_cast<bool>(Tensor{}));
}

TEST(TensorsDeathTest, WrongTypesAndShapesAbortWithTheirNames) {
  float data[4] = {};
  const Tensor t{data, DType::kF32, {2, 2}};
  EXPECT_DEATH((void)t.i32(), "tensor is F32, expected I32");
  EXPECT_DEATH((void)t.Reshaped({3}), "3 vs 4");
  EXPECT_DEATH((void)t.Head(3), "check failed");
}

}  // namespace
}  // namespace dsv4
