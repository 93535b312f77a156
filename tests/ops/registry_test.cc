#include "ops/registry.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/gpu_kernels.h"

namespace dsv4 {
namespace {

TEST(Registry, ListsEveryOpOfTheTree) {
  std::set<std::string> folders, listed;
  for (const auto& entry : std::filesystem::directory_iterator(DSV4_SOURCE_DIR "/src/ops")) {
    const std::string name = entry.path().filename().string();
    if (std::filesystem::exists(entry.path() / (name + ".h"))) folders.insert(name);  // an op's folder has its contract
  }
  for (const OpImplementations& op : ListOps({}))
    EXPECT_TRUE(listed.insert(op.op).second) << op.op << " is listed twice";
  EXPECT_EQ(listed, folders);
}

TEST(Registry, ReferenceOpsChooseTheReferenceOfEveryOp) {
  for (const OpImplementations& op : ListOps({.reference_ops = true})) EXPECT_EQ(op.chosen, "ref") << op.op;
}

TEST(Registry, TheFirstSupportedCandidateIsChosen) {
  for (const OpImplementations& op : ListOps({})) {
    ASSERT_FALSE(op.candidates.empty()) << op.op;
    EXPECT_EQ(op.candidates.back(), "ref") << op.op;
    EXPECT_EQ(std::count(op.candidates.begin(), op.candidates.end(), "ref"), 1) << op.op;
    const auto supported = [](const std::string& name) {
      return !name.ends_with("Kernel") && (name != "avx2" || CpuHasAvx2()) && (name != "avx512" || CpuHasAvx512()) &&
             (name != "avx512vnni" || CpuHasAvx512Vnni()) && name != "amx";
    };
    EXPECT_EQ(op.chosen, *std::find_if(op.candidates.begin(), op.candidates.end(), supported)) << op.op;
  }
}

// On a GPU nothing falls back to the CPU. A build without CUDA also has the names, without kernels to run.
TEST(Registry, EveryOpNamesItsKernelsOnTheGpu) {
  const std::set<std::string> kernels = test::KernelsOfTheTree();
  for (const OpImplementations& op :
       ListOps({.device = DeviceKind::kCuda, .gpu = {.arch = 90, .multiprocessors = 132}})) {
    EXPECT_EQ(op.chosen, op.on_gpu) << op.op;
    const std::set<std::string> named = test::KernelsNamed(op.on_gpu);
    EXPECT_FALSE(named.empty()) << op.op;
    for (const std::string& kernel : named)
      EXPECT_TRUE(kernels.contains(kernel)) << op.op << ": there is no " << kernel;
    const bool has = std::find(op.candidates.begin(), op.candidates.end(), op.on_gpu) != op.candidates.end();
#ifdef DSV4_HAVE_CUDA
    EXPECT_TRUE(has) << op.op;
#else
    EXPECT_FALSE(has) << op.op;
#endif
  }
}

// No silent fall-back: the ops that take most of a step's time have a vectorised implementation, and it is chosen.
TEST(Registry, Lesson20HeavyOpsDoNotRunTheirReference) {
  const std::set<std::string> heavy = {"compress", "experts",  "hc_pre",          "index_topk",
                                       "linear",   "rms_norm", "sparse_attention"};
  for (const OpImplementations& op : ListOps({})) {
    if (heavy.contains(op.op)) {
      EXPECT_NE(op.chosen, "ref") << op.op;
    }
  }
}

// The choice depends only on the machine and the context: it is the same for every number of threads.
TEST(Registry, ThreadsDoNotChangeTheChoice) {
  ThreadPool pool(2);
  const auto alone = ListOps({}), threaded = ListOps({.pool = &pool});
  ASSERT_EQ(alone.size(), threaded.size());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].chosen, threaded[i].chosen) << alone[i].op;
}

}  // namespace
}  // namespace dsv4
