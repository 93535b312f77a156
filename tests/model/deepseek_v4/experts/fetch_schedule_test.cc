// Parts of weights that alternate between two buffers: for every order in which a device runs work and copies that do
// not wait for each other, work finds the part that it requested.
#include "model/deepseek_v4/experts/fetch_schedule.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "model/deepseek_v4/experts/two_queues.h"
#include "support/random.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Random;
using test::TwoQueues;

constexpr size_t kParts = 7;

class Fetch : public ::testing::Test {
 protected:
  Fetch() {
    std::vector<FetchPart> parts;
    for (size_t i = 0; i < kParts; ++i) {
      uint8_t* const to = &places_[i % 2 * 8];
      for (int64_t b = 0; b < 8; ++b) host_[8 * i + static_cast<size_t>(b)] = static_cast<uint8_t>(16 * i + 1);
      parts.push_back({{to, &host_[8 * i], 5}, {to + 5, &host_[8 * i + 5], 3}});
    }
    schedule_ = std::make_unique<FetchSchedule>(std::make_unique<TwoQueues::Copies>(queues_), std::move(parts));
  }
  // Like a product: requests the part, reads it, releases it.
  void Use(size_t part) {
    schedule_->Await(static_cast<int64_t>(part));
    for (int read = 0; read < 2; ++read) {
      queues_.Work([this, part] {
        for (size_t b = 0; b < 8; ++b) ASSERT_EQ(places_[part % 2 * 8 + b], host_[8 * part + b]) << "part " << part;
        ++reads_;
      });
    }
    schedule_->Done(static_cast<int64_t>(part));
    queues_.Work([] {});  // other work between products
  }

  TwoQueues queues_;
  uint8_t places_[16] = {}, host_[8 * kParts] = {};
  std::unique_ptr<FetchSchedule> schedule_;
  int reads_ = 0;
};

class FetchOrder : public Fetch, public ::testing::WithParamInterface<int> {};

TEST_P(FetchOrder, EveryPartIsThereWhenItIsRead) {
  Random random(static_cast<uint64_t>(GetParam()) + 1);
  for (int pass = 0; pass < 3; ++pass) {
    for (size_t i = 0; i < kParts; ++i) Use(i);
  }
  EXPECT_EQ(schedule_->fetched_bytes(), 3 * 8 * static_cast<int64_t>(kParts)) << "each part once a pass";
  queues_.RunAll(random);
  EXPECT_EQ(reads_, 3 * 2 * static_cast<int>(kParts));
}

// Rows that are processed in several runs request a layer's parts again.
TEST_P(FetchOrder, AnyOrderGivesTheRightParts) {
  Random random(static_cast<uint64_t>(GetParam()) + 100);
  for (int i = 0; i < 40; ++i) Use(static_cast<size_t>(random.Index(kParts)));
  queues_.RunAll(random);
  EXPECT_EQ(reads_, 80);
}

INSTANTIATE_TEST_SUITE_P(Orders, FetchOrder, ::testing::Range(0, 20));

}  // namespace
}  // namespace dsv4::deepseek_v4
