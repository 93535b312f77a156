// What experts take of a GPU's scratch memory, and that no number of rows is too large for it: sizes without a GPU,
// parts on the CPU, both on a GPU.
#include "ops/experts/experts_scratch.h"

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

constexpr int64_t kRows[] = {1, 2, 64, 128, 129, 2048, 2049, 4096, 8192, 16384, 65535, 65536, 200000};

// A H200 as the engine uses it.
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

// The parts are as few as they can be, cover all rows, and fit.
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
    const int64_t last = rows - (CeilDiv(rows, part) - 1) *
                                    part;  // fewer rows may have less room in the caller's tensors
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
          ExpectFits(H200(regime, f32_inputs),
                     ExpertsOf(format, 4096, 2048, 256 + more, 6 + more, with_shared));
          ExpectFits(H200(regime, f32_inputs),
                     ExpertsOf(format, 7168, 3072, 384 + more, 6 + more, with_shared));
        }
      }
    }
  }
}

// Inputs of two numbers do not fit into the outputs' place.
TEST(ExpertsScratch, LongPassesTakeParts) {
  const ExpertsShape flash = ExpertsOf(WeightFormat::kNvfp4, 4096, 2048, 256, 6),
                     pro = ExpertsOf(WeightFormat::kNvfp4, 7168, 3072, 384, 6);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), flash, 2048), 2048);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), flash, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kPrompt), pro, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kLongPrompt), flash, 8192), 8192);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kLongPrompt), pro, 8192), 8192);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), flash, 8192),
            8192);  // as many decode rows: --batch-invariant
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), pro, 8192), 4096);
  EXPECT_EQ(ExpertsRowsAtOnce(H200(Regime::kDecode), pro, 16384), 5462);
}

// A row always fits, whatever the limits of a GPU let pass (model/deepseek_v4/gpu_limits.cc).
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

// A layer with an input, so that parts of it can be run.
struct Batch {
  Batch(Random& random, QuantCase kind, int64_t rows_, int64_t d_, int64_t f_, int64_t num_experts,
        int64_t slots_)
      : rows(rows_),
        d(d_),
        f(f_),
        slots(slots_),
        x({rows, d}, random.Normals(rows * d)),
        weights({rows, slots}, random.Uniforms(rows * slots, 0, 1)),
        shared({rows, d}, random.Normals(rows * d)),
        ids({rows, slots}) {
    for (int64_t t = 0; t < rows; ++t)
      std::copy_n(random.Permutation(num_experts).begin(), slots, ids.row(t).begin());
    for (int64_t e = 0; e < num_experts; ++e) {
      gate.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      up.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      down.emplace_back(random, kind, d, f, QuantOptions{.unaligned = false});
    }
  }
  int64_t rows, d, f, slots;
  GuardBuffer<float> x, weights, shared;
  GuardBuffer<int32_t> ids;
  std::vector<QuantFixture> gate, up, down;
};

TEST(ExpertsScratch, PartsOnACpuHaveTheBitsOfTheWhole) {
  Random random(1);
  Batch b(random, {WeightFormat::kNvfp4}, 11, 64, 32, 5, 2);
  std::vector<ExpertMatrices> matrices;
  for (size_t e = 0; e < b.gate.size(); ++e)
    matrices.push_back({b.gate[e].tensor(), b.up[e].tensor(), b.down[e].tensor()});
  GuardBuffer<float> hidden({b.rows * b.slots, 2 * b.f}), outputs({b.rows * b.slots, b.d}),
      rounded({b.rows, b.d}), whole({b.rows, b.d}), parts({b.rows, b.d});
  ExpertsArgs a{.x = b.x.tensor(),
                .experts = b.ids.tensor(),
                .weights = b.weights.tensor(),
                .matrices = matrices,
                .limit = 3,
                .hidden = hidden.tensor(),
                .outputs = outputs.tensor(),
                .rounded_x = rounded.tensor(),
                .shared = b.shared.tensor(),
                .y = whole.tensor()};
  Experts({}, a);
  a.y = parts.tensor();
  for (int64_t begin = 0; begin < b.rows; begin += 4)
    Experts({}, experts::PartOf(a, begin, std::min<int64_t>(4, b.rows - begin)));
  EXPECT_TRUE(BitEqual(parts.span(), whole.span()));
}

std::vector<float> OnGpu(Batch& b, Regime regime, int64_t scratch_bytes, int64_t* at_once) {
  GuardBuffer<float> y({b.rows, b.d});
  Mirror gpu;
  gpu.ctx().regime = regime;
  if (scratch_bytes > 0) gpu.ctx().scratch.bytes = scratch_bytes;
  std::vector<ExpertMatrices> matrices;
  for (size_t e = 0; e < b.gate.size(); ++e) {
    matrices.push_back(
        {gpu.Weight(b.gate[e].tensor()), gpu.Weight(b.up[e].tensor()), gpu.Weight(b.down[e].tensor())});
  }
  const ExpertsArgs a{.x = gpu.In(b.x.tensor()),
                      .experts = gpu.In(b.ids.tensor()),
                      .weights = gpu.In(b.weights.tensor()),
                      .matrices = {gpu.Array(matrices), matrices.size()},
                      .first = matrices[0],
                      .limit = 3,
                      .hidden = gpu.Temp({b.rows * b.slots, 2 * b.f}),
                      .outputs = gpu.Temp({b.rows * b.slots, b.d}),
                      .shared = gpu.In(b.shared.tensor()),
                      .y = gpu.Out(y.tensor())};
  *at_once = ExpertsRowsAtOnce(gpu.ctx(), ShapeOf(a), b.rows);
  Experts(gpu.ctx(), a);
  gpu.Finish();
  return y.values();
}

// Scratch memory for a part of the rows, and what F32 matrices launch a grid of.
TEST(CudaExpertsScratch, PartsHaveTheBitsOfTheWhole) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const QuantCase& kind : AllQuantCases()) {
    Batch b(random, kind, 301, 192, 96, 9, 3);
    for (const Regime regime : {Regime::kDecode, Regime::kPrompt, Regime::kLongPrompt}) {
      SCOPED_TRACE(StrCat(kind.name(), ", regime ", static_cast<int>(regime)));
      int64_t at_once = 0;
      const std::vector<float> whole = OnGpu(b, regime, 0, &at_once);
      EXPECT_EQ(at_once, b.rows);
      ExecContext ctx = H200(regime);
      ctx.gpu = Gpu()->Context(nullptr, false).gpu;
      const ExpertsShape shape{
          .first = {b.gate[0].tensor(), b.up[0].tensor(), b.down[0].tensor()}, .num_experts = 9, .slots = 3};
      const std::vector<float> parts = OnGpu(b, regime, ExpertsScratchBytes(ctx, shape, 101), &at_once);
      EXPECT_LT(at_once, b.rows);
      EXPECT_TRUE(BitEqual(parts, whole));
    }
  }
}

}  // namespace
}  // namespace dsv4::test
