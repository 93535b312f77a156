// The arrival of one request, with a clock of the test.
#include "server/http/intake.h"

#include <chrono>

#include "gtest/gtest.h"

namespace dsv4::server::http_internal {

namespace {

using std::chrono::milliseconds;

TEST(Arrival, IsLateByItsRateInEachWindow) {
  const Arrival::Limits limits{milliseconds(30000), milliseconds(1000), /*min_rate=*/10000};
  Arrival arrival;
  auto now = std::chrono::steady_clock::now();
  arrival.Begin(now);
  arrival.HeaderIsDone(now += milliseconds(500));
  for (int i = 1; i <= 1000; ++i) {  // 41 kB per second
    arrival.Count(5000, 5000);
    EXPECT_FALSE(arrival.IsLate(now += milliseconds(120), limits)) << i;
  }
  bool late = false;
  for (int i = 0; i < 30; ++i) {  // 8 kB per second, whatever came before
    arrival.Count(1000, 1000);
    late = arrival.IsLate(now += milliseconds(120), limits) || late;
  }
  EXPECT_TRUE(late);
}

}  // namespace

}  // namespace dsv4::server::http_internal
