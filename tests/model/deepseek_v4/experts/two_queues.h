// A device with two queues, for work and for copies, that wait for each other only when they are ordered to.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/copy_queue.h"
#include "support/random.h"

namespace dsv4::test {

// Steps run only in RunSome and RunAll. These take the next step of either queue at random, if the step that it waits
// for has run.
class TwoQueues {
 public:
  void Work(std::function<void()> run) { work_.push_back({std::move(run), std::exchange(work_after_, 0)}); }
  void RunSome(Random& random, int64_t steps) {
    while (steps-- > 0 && !AllRan()) {
      ASSERT_TRUE(Ready(0) || Ready(1)) << "the queues wait for each other";
      size_t q = random.Index(2) == 0 ? 0 : 1;
      if (!Ready(q)) q = 1 - q;
      queue(q)[ran_[q]++].run();
    }
  }
  void RunAll(Random& random) {
    while (!AllRan() && !::testing::Test::HasFatalFailure()) RunSome(random, 1);
  }

  class Copies : public CopyQueue {
   public:
    explicit Copies(TwoQueues& queues) : q_(queues) {}
    void AfterWork() override { q_.copies_after_ = q_.work_.size(); }
    void Copy(void* dst, const void* src, int64_t bytes) override {
      q_.copies_.push_back(
          {[=] { std::memcpy(dst, src, static_cast<size_t>(bytes)); }, std::exchange(q_.copies_after_, 0)});
    }
    int64_t Mark() override {
      q_.marks_.push_back(q_.copies_.size());
      return static_cast<int64_t>(q_.marks_.size());
    }
    void WorkAfter(int64_t mark) override { q_.work_after_ = std::max(q_.work_after_, CopiesUntil(mark)); }
    bool Reached(int64_t mark) override { return q_.ran_[1] >= CopiesUntil(mark); }
    double waited_seconds() override { return 0; }

   private:
    size_t CopiesUntil(int64_t mark) const { return q_.marks_.at(static_cast<size_t>(mark - 1)); }
    TwoQueues& q_;
  };

 private:
  struct Step {
    std::function<void()> run;
    size_t after = 0;  // steps of the other queue that must run first
  };

  std::vector<Step>& queue(size_t q) { return q == 0 ? work_ : copies_; }
  bool AllRan() { return ran_[0] == work_.size() && ran_[1] == copies_.size(); }
  bool Ready(size_t q) { return ran_[q] < queue(q).size() && queue(q)[ran_[q]].after <= ran_[1 - q]; }

  std::vector<Step> work_, copies_;
  size_t ran_[2] = {};
  std::vector<size_t> marks_;
  size_t work_after_ = 0, copies_after_ = 0;
};

}  // namespace dsv4::test
