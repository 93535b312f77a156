// The scratch memory that experts need on a GPU, and that every number of rows works. Sizes without a GPU, parts on the
// CPU, both on a GPU.
#include "ops/experts/experts_scratch.h"

#include "support/compare.h"
#include "support/experts_fixture.h"

namespace dsv4::test {
namespace {

constexpr int64_t kRows[] = {1, 2, 64, 128, 129, 2048, 2049, 4096, 8192, 16384, 65535, 65536, 200000};

// An H200 as the engine uses it.
ExecContext H200(Regime regime, bool f32_inputs = false) {
  return {.device = DeviceKind::kCuda,
          .gpu = {.arch = 90, .multiprocessors = 132},
          .scratch = {nullptr, int64_t{768} << 20},
          .f32_inputs = f32_inputs,
          .regime = regime};
}

ExpertsShape ExpertsOf(WeightFormat format, int64_t d, int64_t f, int64_t experts, int64_t slots,
                       bool with_shared = false) {
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return QuantTensor{.format = format, .rows = rows, .cols = cols};
  };
  return {.first = {matrix(f, d), matrix(f, d), matrix(d, f)},
          .num_experts = experts,
          .slots = slots,
          .with_shared = with_shared};
}

// The number of parts is minimal; they cover all rows, and fit.
void ExpectFits(const ExecContext& ctx, const ExpertsShape& shape) {
  for (const int64_t rows : kRows) {
    const int64_t part = ExpertsRowsAtOnce(ctx, shape, rows);
    ASSERT_GE(part, 1) << rows << " rows";
    ASSERT_LE(part, rows);
    EXPECT_LE(ExpertsScratchBytes(ctx, shape, part), ctx.scratch.bytes) << rows << " rows in parts of " << part;
    if (rows <= kMaxTokensOnGpu && ExpertsScratchBytes(ctx, shape, rows) <= ctx.scratch.bytes &&
        shape.first.gate.format != WeightFormat::kF32) {
      EXPECT_EQ(part, rows);
    }
    const int64_t last = rows -
                         (CeilDiv(rows, part) - 1) * part;  // with fewer rows the caller's tensors may have less room
    EXPECT_LE(ExpertsScratchBytes(ctx, shape, last), ctx.scratch.bytes) << rows << " rows, the last " << last;
  }
}

TEST(ExpertsScratch, HoldsEveryNumberOfRowsOfTheReleasedShapes) {
  for (const Regime regime : {Regime::kDecode, Regime::kPrompt, Regime::kLongPrompt}) {
    for (const bool f32_inputs : {false, true}) {
      for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kFp8Block,
                                        WeightFormat::kBf16, WeightFormat::kF32}) {
        for (const bool with_shared : {false, true}) {
          SCOPED_TRACE(StrCat("regime ", static_cast<int>(regime), ", ", NameOf(format),
                              with_shared ? ", with the shared expert" : ""));
          const int64_t more = with_shared ? 1 : 0;
          ExpectFits(H200(regime, f32_inputs), ExpertsOf(format, 4096, 2048, 256 + more, 6 + more, with_shared));
          ExpectFits(H200(regime, f32_inputs), ExpertsOf(format, 7168, 3072, 384 + more, 6 + more, with_shared));
        }
      }
    }
  }
}

// Inputs with two terms do not fit into the memory of the outputs.
TEST(ExpertsScratch, LongPassesTakeParts) {
  const ExpertsShape flash = ExpertsOf(WeightFormat::kNvfp4, 4096, 2048, 256, 6),
                     pro = ExpertsOf(WeightFormat::kNvfp4, 7168, 3072, 384, 6);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), flash, 2048), 2048);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), flash, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), pro, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kLongPrompt), flash, 8192), 8192);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kLongPrompt), pro, 8192), 8192);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), flash, 8192),
            8192);  // the same number of decode rows: --batch-invariant
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), pro, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), pro, 16384), 5462);
}

// A row always fits, for all shapes that the limits of a GPU allow (model/deepseek_v4/config/gpu_limits.cc).
TEST(ExpertsScratch, HoldsARowOfTheLargestShapes) {
  for (const Regime regime : {Regime::kDecode, Regime::kPrompt, Regime::kLongPrompt}) {
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16}) {
      ExpectFits(H200(regime), ExpertsOf(format, 131072, 131072, 1023, 32));
    }
  }
}

TEST(ExpertsScratch, SaysWhereNotEvenOneRowFits) {
  ExecContext ctx = H200(Regime::kDecode);
  ctx.scratch.bytes = 1000;
  EXPECT_EQ(ExpertsRowsAtOnce(ctx, ExpertsOf(WeightFormat::kNvfp4, 4096, 2048, 256, 6), 5), 0);
}

void ExpertsInPartsOfFour(const ExecContext& ctx, const ExpertsArgs& a) {
  for (int64_t begin = 0; begin < a.x.dim(0); begin += 4)
    Experts(ctx, experts::PartOf(a, begin, std::min<int64_t>(4, a.x.dim(0) - begin)));
}

TEST(ExpertsScratch, PartsOnACpuHaveTheBitsOfTheWhole) {
  Random random(1);
  ExpertsLayer l(random, {WeightFormat::kNvfp4}, 5, 64, 32, 11, 2);
  EXPECT_TRUE(BitEqual(OutputOf(l, {.op = ExpertsInPartsOfFour}), OutputOf(l)));
}

// Scratch memory for only a part of the rows, and the grid limit of F32 matrices.
TEST(CudaExpertsScratch, PartsHaveTheBitsOfTheWhole) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const QuantCase& kind : AllQuantCases()) {
    ExpertsLayer l(random, kind, 9, 192, 96, 301, 3);
    const ExpertsShape shape{.first = l.matrices[0], .num_experts = 9, .slots = 3};
    for (const Regime regime : {Regime::kDecode, Regime::kPrompt, Regime::kLongPrompt}) {
      SCOPED_TRACE(StrCat(kind.name(), ", regime ", static_cast<int>(regime)));
      ExecContext ctx = Gpu()->Context(nullptr, false);
      ctx.regime = regime;
      EXPECT_EQ(ExpertsRowsAtOnce(ctx, shape, l.t), l.t);
      const std::vector<float> whole = OutputOf(l, {.op = ExpertsOnGpu, .ctx = ctx});
      ctx.scratch.bytes = ExpertsScratchBytes(ctx, shape, 101);
      EXPECT_LT(ExpertsRowsAtOnce(ctx, shape, l.t), l.t);
      EXPECT_TRUE(BitEqual(OutputOf(l, {.op = ExpertsOnGpu, .ctx = ctx}), whole));
    }
  }
}

}  // namespace
}  // namespace dsv4::test
