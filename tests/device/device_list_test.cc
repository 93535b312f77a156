#include "device/device_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Devices(const std::string& name) {
  const auto devices = RankDevices(name);
  EXPECT_TRUE(devices.ok()) << devices.status().message();
  return devices.ok() ? *devices : std::vector<std::string>{};
}

std::string Refusal(const std::string& name) {
  const auto devices = RankDevices(name);
  if (devices.ok()) return "";
  EXPECT_EQ(devices.status().code(), StatusCode::kInvalidArgument);
  return devices.status().message();
}

TEST(DeviceList, OneDeviceIsOneRank) {
  for (const std::string name : {"cpu", "cuda", "cuda:0", "cuda:7"}) EXPECT_THAT(Devices(name), ElementsAre(name));
  EXPECT_THAT(Devices("cpu*1"), ElementsAre("cpu"));
}

TEST(DeviceList, SeveralRanks) {
  EXPECT_THAT(Devices("cpu*2"), ElementsAre("cpu", "cpu"));
  EXPECT_THAT(Devices("cuda:0,1"), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(Devices("cuda:3,1"), ElementsAre("cuda:3", "cuda:1"));
  EXPECT_THAT(Devices("cuda:0-3"), ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3"));
  EXPECT_THAT(Devices("cuda:0-1,4-5"), ElementsAre("cuda:0", "cuda:1", "cuda:4", "cuda:5"));
  EXPECT_THAT(Devices("cuda:1*2"), ElementsAre("cuda:1", "cuda:1"));
  EXPECT_EQ(Devices("cuda:0-7").size(), 8u);
}

TEST(DeviceList, RefusesWhatIsNoDevice) {
  for (const char* name : {"", "gpu", "cpu:0", "cpu*", "cpu*x", "cpu*2x", "cpu*-2", "cuda0", "cuda:x", "cuda:-1",
                           "cuda:0,", "cuda:,0", "cuda:0-", "cuda:0*", "cuda:*2", "cuda:99999999999", "cuda:1 "}) {
    EXPECT_THAT(Refusal(name), HasSubstr("unknown device")) << name;
  }
  EXPECT_EQ(Refusal("cuda:"), "device 'cuda:': the GPU's number is missing; use cuda or cuda:0");
}

TEST(DeviceList, RefusesCountsAndTwins) {
  EXPECT_EQ(Refusal("cpu*3"), "device 'cpu*3': a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cpu*0"), "device 'cpu*0': a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cpu*16"), "device 'cpu*16': a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cpu*999999999999"), "device 'cpu*999999999999': a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cuda:3-0"), "device 'cuda:3-0': the range 3-0 is in descending order; use 0-3");
  EXPECT_THAT(Refusal("cuda:0,1*2"), HasSubstr("a list gives each GPU one rank, and *N needs a single GPU"));
  EXPECT_EQ(Refusal("cuda:0-2"), "device 'cuda:0-2': 3 GPUs; a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cuda:0,0"), "device 'cuda:0,0' names GPU 0 twice; cuda:0*2 makes two ranks of one GPU");
}

TEST(DeviceList, NamesOfTheCpu) {
  EXPECT_TRUE(NamesCpu("cpu"));
  EXPECT_TRUE(NamesCpu("cpu*4"));
  EXPECT_FALSE(NamesCpu("cuda:0"));
  EXPECT_FALSE(NamesCpu("cpu0"));
}

}  // namespace
}  // namespace dsv4
