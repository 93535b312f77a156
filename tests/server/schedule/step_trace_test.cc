// The file of --trace-steps: a ring of the last steps, and what it does not replace.
#include "server/schedule/step_trace.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

std::vector<std::string> LinesOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class StepTraceTest : public ::testing::Test {
 protected:
  // Tests run at the same time, each in a process.
  StepTraceTest()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("step_trace_test_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~StepTraceTest() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_;
};

TEST_F(StepTraceTest, HasTheLastSteps) {
  const std::filesystem::path path = folder_ / "steps";
  StepTrace trace(path.string());
  const size_t count = StepTrace::kMostSteps + 1000;
  for (size_t i = 0; i < count; ++i) {
    StepRecord step{.end_s = static_cast<double>(i), .shape = {.rows = 3}, .budget = 700, .limit = 64};
    step.shape.of(PromptRegime::kLong) = {500, 2};
    step.seconds[0] = 0.25;
    trace.Add(step);
  }
  ASSERT_TRUE(trace.Write().ok());
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), StepTrace::kMostSteps + 1);
  EXPECT_EQ(lines[0],
            "end_s rows long_tokens long_sequences short_tokens short_sequences pass_s admission_s snapshot_s reply_s "
            "eviction_s tokens_s rest_s distance guess_s budget bound_s limit");
  EXPECT_EQ(lines[1],
            "1000.000000 3 500 2 0 0 0.250000 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000 1.000000 0.000000 "
            "700 0.000000 64");
}

TEST_F(StepTraceTest, ReplacesFilesOnly) {
  EXPECT_TRUE(CheckTraceFile("").ok());
  const std::filesystem::path file = folder_ / "file", link = folder_ / "link";
  std::ofstream(file) << "old";
  std::filesystem::create_symlink(file, link);
  for (const auto& path : {link, folder_, folder_ / "none" / "steps", std::filesystem::path("/dev/null")}) {
    const Status status = CheckTraceFile(path.string());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
    EXPECT_NE(status.message().find("--trace-steps: cannot write '" + path.string()), std::string::npos);
  }
  EXPECT_EQ(LinesOf(file), std::vector<std::string>{"old"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  EXPECT_TRUE(CheckTraceFile(file.string()).ok());
  EXPECT_EQ(LinesOf(file).size(), 1u);
}

}  // namespace
}  // namespace dsv4::server
