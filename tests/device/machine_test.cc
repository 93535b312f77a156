#include "dsv4/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "io/test_files.h"

namespace dsv4 {
namespace {

using test::TempDir;
using test::WriteBytes;

// An artificial /proc and /dev.
class MachineTest : public ::testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    WriteBytes(root_ / path, text);
  }
  void PutGpu(const std::string& bus, const std::string& name) {
    Put("proc/driver/nvidia/gpus/" + bus + "/information", "Model: \t\t " + name + "\nIRQ:   \t\t 120\n");
  }
  std::vector<std::string> Gpus() const { return DescribeMachine(root_.path()).gpus; }
  TempDir root_;
};

TEST_F(MachineTest, WithoutGpus) {
  Put("proc/meminfo", "MemAvailable:    500 kB\n");
  Put("dev/nvidiactl", "");
  const MachineInfo machine = DescribeMachine(root_.path());
  EXPECT_GE(machine.cores, 1);
  EXPECT_FALSE(machine.instructions.empty());
  EXPECT_EQ(machine.available_bytes, 500 * 1024);
  EXPECT_TRUE(machine.gpus.empty());
}

TEST_F(MachineTest, GpusHaveTheDriversNames) {
  Put("dev/nvidia0", "");
  Put("dev/nvidia1", "");
  PutGpu("0000:0f:00.0", "NVIDIA H200");
  PutGpu("0000:1f:00.0", "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(Gpus(), (std::vector<std::string>{"NVIDIA H100 80GB HBM3", "NVIDIA H200"}));
}

TEST_F(MachineTest, AContainerHasTheGpusOfItsDevFolder) {
  PutGpu("0000:0f:00.0", "NVIDIA H200");
  PutGpu("0000:1f:00.0", "NVIDIA H200");
  EXPECT_TRUE(Gpus().empty());
  Put("dev/nvidia7", "");
  EXPECT_EQ(Gpus(), (std::vector<std::string>{"NVIDIA H200"}));
  PutGpu("0000:2f:00.0", "NVIDIA H100 80GB HBM3");  // which of them nvidia7 is, is unknown
  EXPECT_EQ(Gpus(), (std::vector<std::string>{"GPU"}));
}

TEST_F(MachineTest, GpusWithoutTheDriversFiles) {
  Put("dev/nvidia0", "");
  Put("dev/nvidia12", "");
  Put("dev/nvidia-uvm", "");
  EXPECT_EQ(Gpus(), (std::vector<std::string>{"GPU", "GPU"}));
}

}  // namespace
}  // namespace dsv4
