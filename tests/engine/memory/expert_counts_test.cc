// Files of expert counts.
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "dsv4/experts.h"
#include "io/test_files.h"

namespace dsv4::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CountsFile : public ::testing::Test {
 protected:
  Status Read(const std::string& text) {
    EXPECT_TRUE(WriteFile(temp_ / "counts", text).ok());
    return ReadExpertCounts(temp_ / "counts").status();
  }
  TempDir temp_;
};

TEST_F(CountsFile, ComesBackAsItWasWritten) {
  const ExpertCounts counts{.num_layers = 2, .num_experts = 3, .chosen = {1, 0, 18446744073709551615u, 4, 5, 6}};
  ASSERT_TRUE(WriteExpertCounts(temp_ / "c", counts).ok());
  const auto read = ReadExpertCounts(temp_ / "c");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->num_layers, 2);
  EXPECT_EQ(read->num_experts, 3);
  EXPECT_EQ(read->chosen, counts.chosen);
}

TEST_F(CountsFile, WhatIsNotOneIsRefusedByName) {
  for (const char* text :
       {"", "[]", "{}", "{\"dsv4_expert_counts\": 2, \"chosen\": [[1]]}", "{\"dsv4_expert_counts\": 1}",
        "{\"dsv4_expert_counts\": 1, \"chosen\": []}", "{\"dsv4_expert_counts\": 1, \"chosen\": [[]]}",
        "{\"dsv4_expert_counts\": 1, \"chosen\": [[1], [1, 2]]}", "{\"dsv4_expert_counts\": 1, \"chosen\": [[-1]]}",
        "{\"dsv4_expert_counts\": 1, \"chosen\": [[1.5]]}", "{\"dsv4_expert_counts\": 1, \"chosen\": [\"x\"]}"}) {
    const Status status = Read(text);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(status.message(), HasSubstr(temp_ / "counts")) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("--expert-counts: "), HasSubstr("--count-experts"))) << text;
  }
  EXPECT_EQ(ReadExpertCounts(temp_ / "none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Read(std::string(3 << 20, ' ')).code(), StatusCode::kInvalidArgument);
  const ExpertCounts largest{.num_layers = 61, .num_experts = 384, .chosen = std::vector<uint64_t>(61 * 384, ~0ull)};
  ASSERT_TRUE(WriteExpertCounts(temp_ / "largest", largest).ok());
  EXPECT_EQ(ReadExpertCounts(temp_ / "largest")->chosen, largest.chosen);
}

TEST_F(CountsFile, IsNoPipeAndNoLink) {
  const ExpertCounts counts{.num_layers = 1, .num_experts = 1, .chosen = {1}};
  ASSERT_TRUE(WriteExpertCounts(temp_ / "c", counts).ok());
  std::filesystem::create_symlink(temp_ / "c", temp_ / "link");
  ASSERT_EQ(::mkfifo((temp_ / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    const Status status = ReadExpertCounts(temp_ / name).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("--expert-counts: "), HasSubstr(temp_ / name)));
  }
}

}  // namespace
}  // namespace dsv4::test
