#include "base/cpu_topology.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int>;

std::vector<int> IdsOf(const std::vector<Core>& cores) {
  std::vector<int> ids;
  for (const Core& core : cores) ids.push_back(core.id);
  return ids;
}

TEST(CpuTopology, ListsOfCores) {
  EXPECT_EQ(ParseCoreList("0"), Ids{0});
  EXPECT_EQ(ParseCoreList("0-3,8,10-11"), (Ids{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCoreList(""), Ids{});
  EXPECT_EQ(ParseCoreList("x,2,-1,3-"), Ids{2});
}

// Two nodes of four physical cores with two hardware threads each: 0-3 and 8-11, 4-7 and 12-15.
class TwoNodes : public testing::Test {
 protected:
  void SetUp() override {
    // One folder per test, because ctest runs tests in parallel.
    root_ = testing::TempDir() + "dsv4_topology_" + testing::UnitTest::GetInstance()->current_test_info()->name() +
            "_" + std::to_string(::getpid());
    std::filesystem::remove_all(root_);
    Write("node/online", "0-1");
    Write("node/node0/cpulist", "0-3,8-11");
    Write("node/node1/cpulist", "4-7,12-15");
    for (int id = 0; id < 16; ++id) {
      const std::string first = std::to_string(id % 8), second = std::to_string(id % 8 + 8);
      Write("cpu/cpu" + std::to_string(id) + "/topology/thread_siblings_list", first + "," + second);
    }
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_ + "/sys/devices/system/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::string root_;
};

TEST_F(TwoNodes, AreRead) {
  const std::vector<Core> cores = DescribeCores({0, 5, 8, 13}, root_);
  ASSERT_EQ(cores.size(), 4u);
  EXPECT_EQ(cores[0], (Core{0, 0, 0}));
  EXPECT_EQ(cores[1], (Core{5, 1, 0}));
  EXPECT_EQ(cores[2], (Core{8, 0, 1}));
  EXPECT_EQ(cores[3], (Core{13, 1, 1}));
  EXPECT_EQ(DescribeCores({8}, root_)[0].sibling, 0);  // the first usable one of its core
  EXPECT_EQ(NumNodes(cores), 2);
}

TEST_F(TwoNodes, ShareTheThreadsPhysicalCoresFirst) {
  Ids all;
  for (int id = 0; id < 16; ++id) all.push_back(id);
  const std::vector<Core> cores = DescribeCores(all, root_);
  EXPECT_EQ(IdsOf(PlaceThreads(cores, 1)).size(), 1u);
  EXPECT_EQ(IdsOf(PlaceThreads(cores, 2)), (Ids{0, 4}));
  EXPECT_EQ(IdsOf(PlaceThreads(cores, 8)), (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(IdsOf(PlaceThreads(cores, 10)), (Ids{0, 1, 2, 3, 8, 4, 5, 6, 7, 12}));
  EXPECT_EQ(PlaceThreads(cores, 16).size(), 16u);
}

TEST(CpuTopology, ThisMachine) {
  const std::vector<Core> cores = UsableCores();
  EXPECT_EQ(static_cast<int>(cores.size()), NumUsableCores());
  EXPECT_EQ(DescribeCores({3, 1}, "/nowhere"), (std::vector<Core>{{1, 0, 0}, {3, 0, 0}}));
}

}  // namespace
}  // namespace dsv4
