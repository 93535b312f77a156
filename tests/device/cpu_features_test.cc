#include "device/cpu_features.h"

#include <string>

#include <gtest/gtest.h>

#include "device/exec_context.h"

namespace dsv4 {
namespace {

TEST(CpuFeatures, ListAgreesWithTheDispatch) {
  const std::string list = " " + CpuFeatureList() + " ";
  const auto has = [&list](const char* name) { return list.find(std::string(" ") + name + " ") != std::string::npos; };
  EXPECT_EQ(CpuHasAvx2(), CpuIsaLimit() >= CpuIsa::kAvx2 && has("avx2") && has("fma") && has("f16c"));
  EXPECT_EQ(list.find("  "), std::string::npos) << list;
}

TEST(CpuFeatures, TheLimitHolds) {
  EXPECT_TRUE(CheckCpuIsa().ok()) << CheckCpuIsa().message();
  EXPECT_TRUE(!CpuHasAvx512() || CpuHasAvx2());
  EXPECT_TRUE(CpuIsaLimit() >= CpuIsa::kAvx512 || !CpuHasAvx512());
  EXPECT_TRUE(CpuIsaLimit() >= CpuIsa::kAvx2 || !CpuHasAvx2());
}

TEST(ExecContext, StandsForTheCallingThreadAndTheBestImplementations) {
  const ExecContext ctx;
  EXPECT_EQ(ctx.pool, nullptr);
  EXPECT_FALSE(ctx.reference_ops);
}

}  // namespace
}  // namespace dsv4
