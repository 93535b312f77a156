// Plans for a GPU that is described but not present.
#include "layers/plan.h"

#include <gtest/gtest.h>

#include "device/exchange.h"

namespace dsv4 {
namespace {

constexpr GpuInfo kH200 = {.arch = 90, .multiprocessors = 132, .shared_bytes = 227 * 1024, .cluster_blocks = 16};
const ExecContext kOnH200 = {.device = DeviceKind::kCuda, .gpu = kH200};

const uint8_t kSomewhere = 0;
QuantTensor Matrix(WeightFormat format, int64_t rows, int64_t cols) {
  return {.format = format, .rows = rows, .cols = cols, .codes = &kSomewhere};
}

// A CSA layer with the sizes of the smaller released model.
struct Layer {
  static constexpr int64_t kD = 4096, kRq = 1024, kHeads = 64, kDh = 512, kF = 2048;

  explicit Layer(WeightFormat dense = WeightFormat::kNvfp4, WeightFormat experts = WeightFormat::kNvfp4) {
    attention.q_a = Matrix(dense, kRq, kD);
    attention.q_b = Matrix(dense, kHeads * kDh, kRq);
    attention.kv_proj = Matrix(dense, kDh, kD);
    attention.o_a = Matrix(dense, 8 * 1024, kHeads * kDh / 8);
    attention.o_b = Matrix(dense, kD, 8 * 1024);
    attention.indexer.q_b = Matrix(dense, 64 * 128, kRq);
    attention.indexer.weights_proj = Matrix(WeightFormat::kBf16, 64, kD);
    moe.router = Matrix(WeightFormat::kBf16, 256, kD);
    moe.experts.assign(256, {Matrix(experts, kF, kD), Matrix(experts, kF, kD), Matrix(experts, kD, kF)});
    moe.shared = {Matrix(dense, kF, kD), Matrix(dense, kF, kD), Matrix(dense, kD, kF)};
    shape = {
        .attention = &attention,
        .moe = &moe,
        .settings = {.num_heads = kHeads, .head_dim = kDh, .o_groups = 8, .index_heads = 64, .index_head_dim = 128},
        .cache = MakeKvLayout(
                     {.compress_ratios = {4}, .window = 128, .head_dim = kDh, .rope_dim = 64, .index_head_dim = 128})
                     .layers[0],
        .window = 128,
        .rope_dim = 64,
        .streams = 4,
        .dim = kD,
        .experts_per_token = 6};
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  LayerPlan Plan(StepClass step, const ExecContext& ctx = kOnH200) const { return PlanLayer(ctx, step, shape); }

  AttentionWeights attention;
  MoeWeights moe;
  LayerShape shape;
};

TEST(Plan, StepsAreClassedByRegimeAndWithinDecodeByRows) {
  EXPECT_EQ(ClassOf(Regime::kDecode, 1), StepClass::kOneRow);
  EXPECT_EQ(ClassOf(Regime::kDecode, 4), StepClass::kFewRows);
  EXPECT_EQ(ClassOf(Regime::kDecode, 5), StepClass::kDecode);
  EXPECT_EQ(ClassOf(Regime::kDecode, 5000), StepClass::kDecode);
  for (const int64_t rows : {1, 4, 5000}) {
    EXPECT_EQ(ClassOf(Regime::kPrompt, rows), StepClass::kPrompt);
    EXPECT_EQ(ClassOf(Regime::kLongPrompt, rows), StepClass::kLongPrompt);
  }
  for (const StepClass step : kStepClasses) EXPECT_EQ(ClassOf(RegimeOf(step), MostRows(step)), step);
}

TEST(Plan, OneRowIsFewLaunches) {
  const Layer layer;
  const LayerPlan p = layer.Plan(StepClass::kOneRow);
  EXPECT_TRUE(p.attention.expands && p.attention.norms_along);
  EXPECT_TRUE(p.moe.shared_is_routed && p.moe.router_multiplies);
  EXPECT_EQ(p.moe.out, Form::kSlots);
  EXPECT_EQ(p.attention.x, Form::kFloats);
}

TEST(Plan, FewRowsHaveTheLaunchesOfOne) {
  const Layer layer;
  const LayerPlan few = layer.Plan(StepClass::kFewRows), more = layer.Plan(StepClass::kDecode);
  EXPECT_TRUE(few.attention.expands && few.moe.router_multiplies);
  EXPECT_FALSE(more.attention.expands || more.moe.router_multiplies);
}

// One of two ranks that exchange words: with few rows the output matrix sends partials that the bridges sum.
TEST(Plan, FewRowsPartLeavesWhereItIsMade) {
  RankView ranks{.count = 2, .transport = ExchangeTransport::kWords};
  ExecContext ctx = kOnH200;
  ctx.ranks = &ranks;
  for (const WeightFormat dense : {WeightFormat::kNvfp4, WeightFormat::kFp8Block}) {
    Layer layer(dense);
    layer.attention.o_b = Matrix(dense, Layer::kD, 4 * 1024);
    layer.shape.num_cuts = 2;
    layer.shape.mixes = Matrix(WeightFormat::kF32, 24, 4 * Layer::kD);
    EXPECT_EQ(layer.Plan(StepClass::kOneRow, ctx).attention.out, Form::kPushedForBridge);
    EXPECT_EQ(layer.Plan(StepClass::kFewRows, ctx).attention.out, Form::kPushedForBridge);
    EXPECT_EQ(layer.Plan(StepClass::kDecode, ctx).attention.out, Form::kRankParts);
    layer.shape.settings.activation = ActivationDtype::kNvfp4;
    EXPECT_EQ(layer.Plan(StepClass::kOneRow, ctx).attention.out, Form::kPartsForBridge);
    layer.shape.settings.activation = ActivationDtype::kNative;
    layer.attention.o_b = Matrix(dense, Layer::kD, 1000);  // not whole chunks
    EXPECT_EQ(layer.Plan(StepClass::kOneRow, ctx).attention.out, Form::kPartsForBridge);
    layer.attention.o_b = Matrix(dense, Layer::kD, 8 * 1024);  // room for one row's inputs, not for four
    EXPECT_EQ(layer.Plan(StepClass::kOneRow, ctx).attention.out, Form::kPushedForBridge);
    EXPECT_EQ(layer.Plan(StepClass::kFewRows, ctx).attention.out, Form::kPartsForBridge);
  }
  const Layer layer;
  ranks.transport = ExchangeTransport::kEvents;
  EXPECT_FALSE(LinearPushes(ctx, 1, layer.attention.o_b));
  ranks = {.count = 1, .transport = ExchangeTransport::kWords};
  EXPECT_FALSE(LinearPushes(ctx, 1, layer.attention.o_b));
}

// One rank of two and of four.
TEST(Plan, FewRowsOfARanksHeadsAreOneLaunchToo) {
  for (const int64_t cuts : {2, 4}) {
    for (const bool indexes : {true, false}) {
      Layer layer;
      layer.attention.q_b = Matrix(WeightFormat::kNvfp4, Layer::kHeads / cuts * Layer::kDh, Layer::kRq);
      layer.shape.settings.num_heads /= cuts;
      layer.shape.num_cuts = static_cast<int>(cuts);
      if (!indexes) {
        layer.attention.indexer = {};
        layer.shape.cache.index = {};
      }
      EXPECT_TRUE(layer.Plan(StepClass::kOneRow).attention.expands) << cuts << indexes;
      EXPECT_TRUE(layer.Plan(StepClass::kFewRows).attention.expands) << cuts << indexes;
      EXPECT_FALSE(layer.Plan(StepClass::kDecode).attention.expands) << cuts << indexes;
      layer.shape.rank_invariant = true;
      EXPECT_FALSE(layer.Plan(StepClass::kOneRow).attention.expands);
    }
  }
}

TEST(Plan, FewRowsLeaveTheirSlotsToTheNextBridgeIfThereIsOne) {
  Layer layer;
  EXPECT_EQ(layer.Plan(StepClass::kFewRows).moe.out, Form::kSlots);
  EXPECT_EQ(layer.Plan(StepClass::kDecode).moe.out, Form::kFloats);
  layer.shape.is_last = true;
  EXPECT_EQ(layer.Plan(StepClass::kFewRows).moe.out, Form::kFloats);
  EXPECT_EQ(layer.Plan(StepClass::kOneRow).moe.out, Form::kFloats);
}

TEST(Plan, LongPromptsPassBlocks) {
  const Layer layer;
  const LayerPlan p = layer.Plan(StepClass::kLongPrompt);
  EXPECT_EQ(p.attention.x, Form::kFloatsAndBlocks);
  EXPECT_EQ(p.attention.queries, Form::kQueries);
  EXPECT_EQ(p.attention.heads, Form::kBlocks);
  EXPECT_EQ(p.attention.o_lora, Form::kBlocks);
  EXPECT_EQ(p.moe.x, Form::kFloatsAndBlocks);
  EXPECT_EQ(p.moe.hidden, Form::kBlocks);
  EXPECT_TRUE(p.moe.experts_read_blocks);
  EXPECT_FALSE(p.moe.shared_is_routed || p.attention.norms_along);
  EXPECT_EQ(p.moe.out, Form::kFloats);
}

TEST(Plan, PromptsOfTwoNumbersPassFloats) {
  const Layer layer;
  const LayerPlan p = layer.Plan(StepClass::kPrompt);
  for (const Form form :
       {p.attention.x, p.attention.queries, p.attention.heads, p.attention.o_lora, p.moe.x, p.moe.hidden, p.moe.out}) {
    EXPECT_EQ(form, Form::kFloats);
  }
}

// FP8 with NVFP4 or MXFP4: the shared expert has another format than the routed ones, and q_b is no matrix that a
// launch expands.
TEST(Plan, AMixtureOfFormatsKeepsTheSharedExpertApart) {
  for (const WeightFormat experts : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const Layer layer(WeightFormat::kFp8Block, experts);
    const LayerPlan one = layer.Plan(StepClass::kOneRow), prompt = layer.Plan(StepClass::kLongPrompt);
    EXPECT_FALSE(one.attention.expands || one.moe.shared_is_routed || one.moe.router_multiplies);
    EXPECT_TRUE(one.attention.norms_along);
    EXPECT_EQ(one.moe.out, Form::kFloats);
    EXPECT_EQ(prompt.attention.heads, Form::kBlocks);
    EXPECT_EQ(prompt.moe.hidden, Form::kBlocks);
  }
}

// With a rounding mode the inputs are not FP16 blocks, and the norm is not fused with q_b.
TEST(Plan, RoundedInputsAreFloats) {
  Layer layer;
  layer.shape.settings.activation = ActivationDtype::kNvfp4;
  for (const StepClass step : kStepClasses) {
    const LayerPlan p = layer.Plan(step);
    EXPECT_EQ(p.attention.q_a, Input::kRounded);
    EXPECT_EQ(p.attention.index_weights, Input::kAsIs);
    EXPECT_TRUE(p.attention.rounds_heads);
    EXPECT_FALSE(p.attention.norms_along || p.attention.expands || p.moe.experts_read_blocks);
    EXPECT_EQ(p.attention.x, Form::kFloats);
    EXPECT_EQ(p.attention.heads, Form::kFloats);
    EXPECT_EQ(p.moe.hidden, Form::kFloats);
  }
}

// Blackwell multiplies NVFP4 codes directly in long prompts; kernels for Hopper are not used there.
TEST(Plan, AnotherGenerationOfGpus) {
  ExecContext blackwell = kOnH200;
  blackwell.gpu.arch = 100;
  Layer layer;
  const LayerPlan native = layer.Plan(StepClass::kLongPrompt, blackwell);
  EXPECT_EQ(native.attention.x, Form::kFloats);
  EXPECT_EQ(native.attention.heads, Form::kFloats);
  layer.shape.settings.activation = ActivationDtype::kNvfp4;
  EXPECT_EQ(layer.Plan(StepClass::kLongPrompt, blackwell).attention.q_a, Input::kCodes);
  EXPECT_EQ(layer.Plan(StepClass::kPrompt, blackwell).attention.q_a, Input::kRounded);
}

// Fewer multiprocessors than blocks that wait for one another, or no clusters of 16: other launches, the same forms.
TEST(Plan, ASmallerGpu) {
  const Layer layer;
  ExecContext ctx = kOnH200;
  ctx.gpu.multiprocessors = 114;
  EXPECT_FALSE(layer.Plan(StepClass::kOneRow, ctx).attention.expands);
  ctx.gpu.cluster_blocks = 8;
  EXPECT_FALSE(layer.Plan(StepClass::kOneRow, ctx).moe.router_multiplies);
  EXPECT_EQ(layer.Plan(StepClass::kOneRow, ctx).moe.out, Form::kFloats);
}

TEST(Plan, Float32InputsTakeNoneOfIt) {
  const Layer layer;
  ExecContext ctx = kOnH200;
  ctx.f32_inputs = true;
  for (const StepClass step : kStepClasses) {
    const LayerPlan p = layer.Plan(step, ctx);
    EXPECT_FALSE(p.attention.expands || p.attention.norms_along || p.moe.router_multiplies);
    EXPECT_EQ(p.attention.heads, Form::kFloats);
    EXPECT_EQ(p.moe.hidden, Form::kFloats);
  }
}

TEST(Plan, OnACpuEverythingIsFloats) {
  const Layer layer;
  for (const StepClass step : kStepClasses) {
    const LayerPlan p = layer.Plan(step, {});
    EXPECT_FALSE(p.attention.expands || p.attention.norms_along || p.moe.shared_is_routed || p.moe.router_multiplies);
    for (const Form form : {p.attention.x, p.attention.queries, p.attention.heads, p.attention.o_lora, p.moe.x,
                            p.moe.hidden, p.moe.out}) {
      EXPECT_EQ(form, Form::kFloats);
    }
  }
}

// A buffer is large enough for each of its forms, for steps of every size.
TEST(Activation, FormsFitTheRoomThatHoldsThem) {
  for (const int64_t t : {1, 2, 3, 7, 8, 9, 64, 100}) {
    const int64_t bytes = std::max(FloatBytes(t, 512), ActivationBlocksBytes(t, 512));
    std::vector<uint8_t> memory(static_cast<size_t>(bytes));
    const Room room{memory.data(), bytes};
    for (int64_t rows = 1; rows <= t; ++rows) {
      EXPECT_EQ(room.As(Form::kFloats, rows, 512).blocks, nullptr);
      const Activation blocks = room.As(Form::kBlocks, rows, 512);
      EXPECT_EQ(blocks.blocks, memory.data());
      EXPECT_EQ(blocks.x.dim(0), rows);
    }
  }
  EXPECT_EQ(ActivationBlocksBytes(9, 512), 2 * 8 * 512 * 2);
  EXPECT_EQ(QueryBytes(9, 1024), QueryBlocksBytes(9, 1024) + 9 * 16 * 4);
}

}  // namespace
}  // namespace dsv4
