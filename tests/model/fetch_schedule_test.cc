// Parts of weights that take turns in two places: whatever the order in which a device runs work and copies that do not
// wait for each other, work finds the part that it asked for.
#include "model/deepseek_v4/fetch_schedule.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "support/random.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Random;

// A device with two queues. Nothing runs before RunAll, which takes the next step of either queue at random, as long as
// what it waits for has run.
class TwoQueues {
 public:
  struct Step {
    std::function<void()> run;
    size_t after = 0;  // steps of the other queue that run first
  };

  void Work(std::function<void()> run) { work_.push_back({std::move(run), std::exchange(work_after_, 0)}); }
  void RunAll(Random& random) {
    size_t done[2] = {};
    const std::vector<Step>* const queues[2] = {&work_, &copies_};
    while (done[0] < work_.size() || done[1] < copies_.size()) {
      const auto ready = [&](size_t q) {
        return done[q] < queues[q]->size() && (*queues[q])[done[q]].after <= done[1 - q];
      };
      ASSERT_TRUE(ready(0) || ready(1)) << "the queues wait for each other";
      size_t q = random.Index(2) == 0 ? 0 : 1;
      if (!ready(q)) q = 1 - q;
      (*queues[q])[done[q]++].run();
    }
  }

  class Copies : public CopyQueue {
   public:
    explicit Copies(TwoQueues& queues) : q_(queues) {}
    void AfterWork() override { q_.copies_after_ = q_.work_.size(); }
    void Copy(void* dst, const void* src, int64_t bytes) override {
      q_.copies_.push_back({[=] { std::memcpy(dst, src, static_cast<size_t>(bytes)); },
                            std::exchange(q_.copies_after_, 0)});
    }
    int64_t Mark() override {
      q_.marks_.push_back(q_.copies_.size());
      return static_cast<int64_t>(q_.marks_.size());
    }
    void WorkAfter(int64_t mark) override {
      q_.work_after_ = std::max(q_.work_after_, q_.marks_.at(static_cast<size_t>(mark - 1)));
    }

   private:
    TwoQueues& q_;
  };

 private:
  std::vector<Step> work_, copies_;
  std::vector<size_t> marks_;
  size_t work_after_ = 0, copies_after_ = 0;
};

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
  // As a product does: asks for the part, reads it, is done with it.
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

// Rows that are taken in several runs ask for a layer's parts again.
TEST_P(FetchOrder, AnyOrderGivesTheRightParts) {
  Random random(static_cast<uint64_t>(GetParam()) + 100);
  for (int i = 0; i < 40; ++i) Use(static_cast<size_t>(random.Index(kParts)));
  queues_.RunAll(random);
  EXPECT_EQ(reads_, 80);
}

INSTANTIATE_TEST_SUITE_P(Orders, FetchOrder, ::testing::Range(0, 20));

}  // namespace
}  // namespace dsv4::deepseek_v4
