#include "cli/welcome.h"

#include "cli/terminal_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace dsv4::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Welcome OnCpu() {
  return {.machine = {.cores = 2, .instructions = "AVX2", .available_bytes = 20'400'000'000},
          .has_gpu_code = true,
          .has_bundled_model = true};
}

TEST(Welcome, SaysWhatTheMachineIs) {
  Welcome welcome = OnCpu();
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("2 cores with AVX2, 20 GB of free memory, no GPU."));
  welcome.machine = {.cores = 1, .instructions = "AMX", .gpus = {"NVIDIA H200"}};
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("1 core with AMX, 1 GPU (NVIDIA H200)."));
  welcome.machine.gpus = {"GPU", "GPU"};
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("2 GPUs."));
  welcome.machine.gpus = {"NVIDIA H100", "NVIDIA H200", "NVIDIA H200"};
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("3 GPUs (NVIDIA H100, NVIDIA H200)."));
}

TEST(Welcome, NamesAGpuOnlyIfThereIsOneForThisBuild) {
  Welcome welcome = OnCpu();
  EXPECT_THAT(WelcomeText(welcome, 200), Not(HasSubstr("--device")));
  welcome.machine.gpus = {"NVIDIA H200"};
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("dsv4 chat -m flash --device cuda\n"));
  EXPECT_THAT(WelcomeText(welcome, 200), Not(HasSubstr("no GPU code")));
  welcome.has_gpu_code = false;
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("This build has no GPU code"));
  EXPECT_THAT(WelcomeText(welcome, 200), Not(HasSubstr("--device")));
}

TEST(Welcome, WithoutTheBundledModel) {
  Welcome welcome = OnCpu();
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("dsv4 serve"));
  welcome.has_bundled_model = false;
  EXPECT_THAT(WelcomeText(welcome, 200), Not(HasSubstr("dsv4 serve")));
  EXPECT_THAT(WelcomeText(welcome, 200), HasSubstr("hf download"));
}

TEST(Welcome, FitsATerminal) {
  Welcome welcome = OnCpu();
  welcome.machine.gpus = {"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA RTX PRO 6000 Blackwell Server Edition"};
  std::istringstream lines(WelcomeText(welcome, 80));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Wrapped, KeepsEveryWord) {
  EXPECT_EQ(Wrapped("one two three", 80, 0), "one two three");
  EXPECT_EQ(Wrapped("one two three four five six seven", 24, 2), "one two three four\n  five six seven");
  EXPECT_EQ(Wrapped("one two three four", 9, 0), "one two\nthree\nfour");
}

}  // namespace
}  // namespace dsv4::cli
