// Limits the work that XGrammar may do in one call. Its loops and its recursive functions call xgrammar::CountWork
// (scripts/fetch_xgrammar adds these calls). CountWork throws an exception if the budget of the thread, or most of its
// stack, is used up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "server/structured/grammar.h"

namespace dsv4::server {

struct OutOfWork : std::runtime_error {
  OutOfWork(StatusCode its_code, const std::string& what) : std::runtime_error(what), code(its_code) {}
  const StatusCode code;
};

// The budget for the calls of this thread while the object lives.
class WorkBudget {
 public:
  WorkBudget(double seconds, int64_t steps, const std::atomic<bool>* cancelled);
  ~WorkBudget();
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;

  int64_t steps() const { return steps_; }
  void Count(int64_t steps) {  // throws OutOfWork
    steps_ += steps;
    if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < stack_end_) ThrowTooDeep();
    if (steps_ >= next_check_) Check();
  }

 private:
  void Check();
  [[noreturn]] static void ThrowTooDeep();

  const std::chrono::steady_clock::time_point end_;
  const double seconds_;
  const int64_t max_steps_;
  const std::atomic<bool>* const cancelled_;
  const uintptr_t stack_end_;  // stack frames at lower addresses are too deep
  int64_t steps_ = 0, next_check_ = 0;
};

}  // namespace dsv4::server
