// The plan that `inspect --plan` prints for Flash on an H200 that is described but not present.
#include "model/deepseek_v4/pass/describe_plan.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/str.h"
#include "device/exchange.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/synthetic.h"
#include "model/deepseek_v4/load/synthetic_values.h"
#include "support/gpu_kernels.h"

namespace dsv4::deepseek_v4 {
namespace {

constexpr GpuInfo kH200 = {.arch = 90, .multiprocessors = 132, .shared_bytes = 227 * 1024, .cluster_blocks = 16};
const ExecContext kOnH200 = {.device = DeviceKind::kCuda, .gpu = kH200};

Model FlashModel(bool fp8_dense, WeightFormat experts) {
  const SyntheticModel synthetic{.shape = "flash", .fp8_dense = fp8_dense};
  const Config config = SyntheticConfig(synthetic).value();
  Model model = MakeModel(config, SyntheticShapes(config, synthetic), {});
  for (LayerWeights& layer : model.weights.layers) {
    for (ExpertWeights& e : layer.moe.experts) e.gate.format = e.up.format = e.down.format = experts;
  }
  return model;
}

std::string Printed(const std::vector<PlannedOp>& lines) {
  std::string text;
  for (const PlannedOp& line : lines)
    text += StrCat(line.op, " | ", line.layers, " | ", line.steps, " | ", line.runs, "\n");
  return text;
}

std::string FileText(const std::string& name) {
  std::ifstream file(StrCat(DSV4_SOURCE_DIR, "/tests/model/deepseek_v4/pass/plans/", name));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ExpectThePlan(const Model& model, const char* file) {
  const std::string printed = Printed(DescribePlan(kOnH200, model));
  EXPECT_EQ(printed, FileText(file)) << "tests/model/deepseek_v4/pass/plans/" << file << " is another plan; this is\n"
                                     << printed;
  const std::set<std::string> kernels = test::KernelsOfTheTree();
  for (const std::string& kernel : test::KernelsNamed(printed))
    EXPECT_TRUE(kernels.contains(kernel)) << "there is no " << kernel;
}

TEST(DescribePlan, FlashInNvfp4) { ExpectThePlan(FlashModel(false, WeightFormat::kNvfp4), "flash_nvfp4_h200.txt"); }
TEST(DescribePlan, FlashInFp8AndNvfp4) {
  ExpectThePlan(FlashModel(true, WeightFormat::kNvfp4), "flash_fp8_nvfp4_h200.txt");
}
TEST(DescribePlan, FlashInFp8AndMxfp4) {
  ExpectThePlan(FlashModel(true, WeightFormat::kMxfp4), "flash_fp8_mxfp4_h200.txt");
}
// --rank-invariant: the kernels do not depend on how many ranks hold the slices, and no work of slices shares a launch
// with work of whole weights.
TEST(DescribePlan, SlicesArePlannedAlikeOnAnyNumberOfRanks) {
  for (const bool fp8_dense : {false, true}) {
    const SyntheticModel synthetic{.shape = "flash", .num_layers = 5, .fp8_dense = fp8_dense};
    const Config config = SyntheticConfig(synthetic).value();
    std::string one;
    for (const int count : {1, 2, 4, 8}) {
      const Sharding sharding{.count = count, .fixed_cuts = 8};
      const Model model = MakeModel(ShardConfig(config, sharding),
                                    ShardShapes(SyntheticShapes(config, synthetic), sharding), {});
      const RankView ranks{.count = count, .transport = ExchangeTransport::kWords};
      ExecContext ctx = kOnH200;
      if (count > 1) ctx.ranks = &ranks;
      const std::string printed = Printed(DescribePlan(ctx, model));
      if (count == 1) one = printed;
      EXPECT_EQ(printed, one) << count;
    }
    EXPECT_EQ(one.find("with q_b"), std::string::npos) << one;
    EXPECT_EQ(one.find("with the next hc_bridge"), std::string::npos);
    EXPECT_NE(one.find("slices (attention) | all | decode | q_b to o_b one by one"), std::string::npos);
    EXPECT_NE(one.find("slices (experts) | all | all | one by one"), std::string::npos);
  }
}

// The same as with wide tiles, including the shared expert with the others, except for the format's name.
TEST(DescribePlan, TightTilesAreNamedAndChangeNothingElse) {
  for (const bool fp8_dense : {false, true}) {
    for (const WeightFormat wide : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
      const std::string tight = Printed(DescribePlan(kOnH200, FlashModel(fp8_dense, TightOf(wide))));
      std::string want;
      for (PlannedOp line : DescribePlan(kOnH200, FlashModel(fp8_dense, wide))) {
        if (line.op == "experts") {
          const size_t at = line.runs.find(NameOf(wide));
          ASSERT_NE(at, std::string::npos) << line.runs;
          line.runs.insert(at + NameOf(wide).size(), "-tight");
        }
        want += Printed({line});
      }
      EXPECT_EQ(tight, want);
    }
  }
}
TEST(DescribePlan, LayersWithTightTilesAreNamed) {
  Model model = FlashModel(true, WeightFormat::kMxfp4);
  for (const size_t l : {1, 2, 7}) {
    for (ExpertWeights& e : model.weights.layers[l].moe.experts) {
      for (QuantTensor* m : {&e.gate, &e.up, &e.down}) m->format = WeightFormat::kMxfp4Tight;
    }
  }
  bool named = false;
  for (const PlannedOp& line : DescribePlan(kOnH200, model))
    named = named || (line.op == "experts" && line.layers == "1-2, 7" && line.runs.ends_with("; MXFP4-tight"));
  EXPECT_TRUE(named) << Printed(DescribePlan(kOnH200, model));
}

// On a CPU one implementation runs an op in every step: the one that the registry chooses.
TEST(DescribePlan, OnACpuAnOpHasOneLine) {
  std::set<std::string> ops;
  for (const PlannedOp& line : DescribePlan({}, FlashModel(false, WeightFormat::kNvfp4))) {
    EXPECT_TRUE(ops.insert(line.op).second) << line.op;
    EXPECT_EQ(line.steps, "all") << line.op;
    EXPECT_TRUE(test::KernelsNamed(line.runs).empty()) << line.op << ": " << line.runs;
  }
  EXPECT_TRUE(ops.contains("q_a") && ops.contains("experts") && ops.contains("sparse_attention"));
}

}  // namespace
}  // namespace dsv4::deepseek_v4
