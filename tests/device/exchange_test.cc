#include "device/exchange.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random.h"
#include "support/ranks.h"

namespace dsv4::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// No rank reads a number before it is written, or writes the next one before all have read.
TEST(Exchange, ShowsEveryRankWhatTheOthersBring) {
  for (const int count : {1, 2, 4, 8}) {
    Exchange exchange(count, {.timeout_s = 60});
    std::atomic<int> wrong = 0;
    RunRanks(exchange, [&](const ExecContext& ctx, int rank) {
      Random random(static_cast<uint64_t>(rank));
      int64_t mine = 0;
      for (int64_t site = 0; site < 300; ++site) {
        mine = site * 100 + rank;
        if (random.Chance(0.1)) std::this_thread::sleep_for(std::chrono::microseconds(random.Index(200)));
        if (!ctx.ranks->exchange->Meet(rank, site, &mine)) ++wrong;
        for (int p = 0; p < count; ++p) {
          if (*static_cast<int64_t*>(ctx.ranks->exchange->shown(p)) != site * 100 + p) ++wrong;
        }
        if (!ctx.ranks->exchange->Leave(rank, site)) ++wrong;
      }
    });
    EXPECT_EQ(wrong, 0) << count;
    EXPECT_TRUE(exchange.status().ok());
  }
}

// Counts continue beyond 32 bits.
TEST(Exchange, NumbersOfManyExchanges) {
  Exchange exchange(2, {.timeout_s = 60, .first = 0xFFFFFFF0u});
  std::atomic<int> wrong = 0;
  RunRanks(exchange, [&](const ExecContext&, int rank) {
    for (int64_t site = 0; site < 50; ++site) {
      int64_t mine = site + 1000 * rank;
      wrong += !exchange.Meet(rank, site, &mine);
      wrong += *static_cast<int64_t*>(exchange.shown(1 - rank)) != site + 1000 * (1 - rank);
      wrong += !exchange.Leave(rank, site);
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Exchange, ALateRankIsAwaited) {
  Exchange exchange(2, {.timeout_s = 60});
  RunRanks(exchange, [&](const ExecContext&, int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(300));
    EXPECT_TRUE(exchange.Meet(rank, 0, nullptr));
    EXPECT_TRUE(exchange.Leave(rank, 0));
  });
  EXPECT_TRUE(exchange.status().ok());
}

// The others stop waiting after the limit, report which rank did not come and where, and do not wait again.
TEST(Exchange, ADeadRankIsNamedAndTheStepDrains) {
  Exchange exchange(4, {.timeout_s = 3,  // far longer than the delay of a rank on a busy machine
                        .site_name = [](int64_t site) { return "layer " + std::to_string(site / 2) + ", experts"; }});
  const double seconds = SecondsOf([&] {
    RunRanks(exchange, [&](const ExecContext&, int rank) {
      for (int64_t site = 0; site < 100; ++site) {
        if (rank == 2 && site == 35) return;
        const bool met = exchange.Meet(rank, site, nullptr);
        EXPECT_EQ(met, site < 35) << rank << " at " << site;
        if (met) {
          EXPECT_TRUE(exchange.Leave(rank, site));
        }
      }
    });
  });
  EXPECT_LT(seconds, 60) << "a time-out at each later site";
  EXPECT_EQ(exchange.status().code(), StatusCode::kInternal);
  EXPECT_THAT(exchange.status().message(), HasSubstr("rank 2 sent nothing to rank "));
  EXPECT_THAT(exchange.status().message(), HasSubstr("for 3 s (layer 17, experts)"));
}

TEST(Exchange, ARankThatFailsWakesTheOthersAtOnce) {
  Exchange exchange(2, {.timeout_s = 0});
  RunRanks(exchange, [&](const ExecContext&, int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      exchange.FailRank(1, ResourceExhausted("no memory for this step"));
    } else {
      EXPECT_FALSE(exchange.Meet(rank, 0, nullptr));
    }
  });
  EXPECT_EQ(exchange.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(exchange.status().message(), "rank 1: no memory for this step");
}

// The data that a rank shows does not change while another rank reads it, even if the exchange fails in between.
TEST(Exchange, AFailureWaitsForThoseWhoRead) {
  Exchange exchange(4, {.timeout_s = 60});
  int shown[4] = {7, 7, 7, 7};
  std::atomic<int> wrong = 0, met = 0;
  RunRanks(exchange, [&](const ExecContext&, int rank) {
    ASSERT_TRUE(exchange.Meet(rank, 0, &shown[rank]));
    ++met;
    while (rank == 0 && met < 4) std::this_thread::yield();  // a failure before would end the others' Meet
    if (rank == 0) return exchange.FailRank(0, Internal("a test"));
    if (rank == 1) std::this_thread::sleep_for(milliseconds(100));
    for (int p = 1; p < 4; ++p) wrong += *static_cast<int*>(exchange.shown(p)) != 7;
    EXPECT_FALSE(exchange.Leave(rank, 0));
    shown[rank] = 8;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Exchange, RanksAtDifferentSitesAreAMistakeThatIsNamed) {
  Exchange exchange(2, {.timeout_s = 60});
  RunRanks(exchange, [&](const ExecContext&, int rank) { EXPECT_FALSE(exchange.Meet(rank, 5 + rank, nullptr)); });
  EXPECT_THAT(exchange.status().message(), HasSubstr("collective 5"));
  EXPECT_THAT(exchange.status().message(), HasSubstr("collective 6"));
  EXPECT_THAT(exchange.status().message(), HasSubstr("different steps"));
}

TEST(Exchange, TheFirstFailureStays) {
  Exchange exchange(2, {});
  exchange.Fail(Internal("first"));
  exchange.FailRank(0, Internal("second"));
  EXPECT_EQ(exchange.status().message(), "first");
}

TEST(ExchangeDeathTest, CountsThatMakeNoTree) {
  for (const int count : {0, 3, 6, 16}) EXPECT_DEATH(Exchange(count, {}), "ranks") << count;
}

TEST(RankShares, CoverEverythingOnce) {
  for (const int count : {1, 2, 4, 8}) {
    for (const int64_t n : {0, 1, 63, 64, 65, 1000, 4096, 33333}) {
      int64_t next = 0;
      for (int r = 0; r < count; ++r) {
        const RankShare share = ShareOf(n, r, count, 64);
        EXPECT_EQ(share.begin, next);
        EXPECT_TRUE(share.end % 64 == 0 || share.end == n);
        next = share.end;
      }
      EXPECT_EQ(next, n);
    }
  }
}

}  // namespace
}  // namespace dsv4::test
