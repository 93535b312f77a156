// The plan that `inspect --plan` prints, of Flash on an H200 that is described and not there.
#include "model/deepseek_v4/describe_plan.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/str.h"
#include "model/deepseek_v4/synthetic.h"
#include "model/deepseek_v4/synthetic_values.h"
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
  std::ifstream file(StrCat(DSV4_SOURCE_DIR, "/tests/model/plans/", name));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ExpectThePlan(const Model& model, const char* file) {
  const std::string printed = Printed(DescribePlan(kOnH200, model));
  EXPECT_EQ(printed, FileText(file)) << "tests/model/plans/" << file << " is another plan; this is\n" << printed;
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

// On a CPU one implementation takes an op in every step, and it is the one that the registry chooses.
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
