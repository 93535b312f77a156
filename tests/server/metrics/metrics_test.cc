#include "server/metrics/metrics.h"

#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

TEST(Metrics, FailuresOfDevicesNameTheRankThatIsToBlame) {
  Metrics metrics("m", 4);
  const auto count = [&](const std::string& rank) {
    const std::string page = metrics.Render({});
    const std::string series = "dsv4_device_failures_total{model_name=\"m\",engine=\"0\",rank=\"" + rank + "\"} ";
    const size_t at = page.find(series);
    return at == std::string::npos ? -1 : std::stoi(page.substr(at + series.size()));
  };
  for (const char* rank : {"0", "1", "2", "3", "unknown"}) EXPECT_EQ(count(rank), 0) << rank;
  EXPECT_EQ(count("4"), -1);
  metrics.AddDeviceFailure("rank 3 (after layer 5, experts): no memory for this step");
  metrics.AddDeviceFailure("GPU 1 sent nothing to GPU 0 for 10 s (layer 17, experts)");
  metrics.AddDeviceFailure("GPU 1: the GPU failed");
  metrics.AddDeviceFailure("no memory");
  metrics.AddDeviceFailure("rank 12: there is none");
  EXPECT_EQ(count("0"), 0);
  EXPECT_EQ(count("1"), 2);
  EXPECT_EQ(count("3"), 1);
  EXPECT_EQ(count("unknown"), 2);
}

TEST(Metrics, OneDeviceIsTheOneThatFailed) {
  Metrics metrics("m");
  metrics.AddDeviceFailure("the CPU failed: a test");
  EXPECT_NE(metrics.Render({}).find("rank=\"0\"} 1\n"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::server
