#include "base/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/test_files.h"

namespace dsv4 {
namespace {

using test::TempDir;
using test::WriteBytes;

// An artificial /proc and /sys.
class AvailableMemoryTest : public ::testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    WriteBytes(root_ / path, text);
  }
  TempDir root_;
};

TEST_F(AvailableMemoryTest, KernelsFigureWithoutGroups) {
  EXPECT_EQ(AvailableMemory(root_.path()), 0);
  Put("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    500 kB\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 500 * 1024);
}

TEST_F(AvailableMemoryTest, Version2LimitsOfEveryLevelCount) {
  Put("proc/meminfo", "MemAvailable:    500 kB\n");
  Put("proc/self/cgroup", "0::/a/b\n");
  Put("sys/fs/cgroup/a/b/memory.max", "max\n");
  Put("sys/fs/cgroup/a/b/memory.current", "1000\n");
  Put("sys/fs/cgroup/a/memory.max", "300000\n");
  Put("sys/fs/cgroup/a/memory.current", "250000\n");
  Put("sys/fs/cgroup/a/memory.stat", "anon 50000\nfile 200000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 250000);
}

TEST_F(AvailableMemoryTest, Version1Limits) {
  Put("proc/meminfo", "MemAvailable:    500 kB\n");
  Put("proc/self/cgroup", "5:devices:/\n4:memory:/job\n0::/\n");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "100000\n");
  Put("sys/fs/cgroup/memory/memory.usage_in_bytes", "150000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 0);
  Put("sys/fs/cgroup/memory/memory.usage_in_bytes", "40000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 60000);
}

}  // namespace
}  // namespace dsv4
