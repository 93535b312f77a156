// A GPU as a Device of the engine.
#include "device/fault_log.h"
#include "support/cuda_mirror.h"

namespace dsv4::test {
namespace {

TEST(CudaDevice, AFaultIsOneDevicesOwn) {
  DSV4_GPU_OR_SKIP();
  auto one = Device::Open("cuda"), other = Device::Open("cuda");
  ASSERT_TRUE(one.ok() && other.ok());
  const ExecContext ctx = one.value()->Context(nullptr, false);
  ASSERT_NE(ctx.faults, nullptr);
  EXPECT_NE(ctx.faults, other.value()->Context(nullptr, false).faults);
  EXPECT_TRUE(one.value()->Synchronize().ok());
  ctx.faults->Note("a test", "made up");
  EXPECT_FALSE(one.value()->Synchronize().ok());
  EXPECT_TRUE(other.value()->Synchronize().ok());
}

TEST(CudaDevice, SaysWhatTheGpuIs) {
  DSV4_GPU_OR_SKIP();
  const GpuInfo gpu = Mirror().ctx().gpu;
  EXPECT_GE(gpu.arch, 90);
  EXPECT_GT(gpu.multiprocessors, 0);
  EXPECT_GE(gpu.shared_bytes, 227 * 1024);
  EXPECT_TRUE(gpu.cluster_blocks == 8 || gpu.cluster_blocks == 16) << gpu.cluster_blocks;
}

}  // namespace
}  // namespace dsv4::test
