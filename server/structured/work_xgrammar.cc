#include <pthread.h>

#include "server/structured/work.h"

namespace {

thread_local dsv4::server::WorkBudget* budget_of_this_thread = nullptr;

}  // namespace

namespace xgrammar {

void CountWork(int steps);

void CountWork(int steps) {
  if (budget_of_this_thread != nullptr) budget_of_this_thread->Count(steps);
}

}  // namespace xgrammar

namespace dsv4::server {

namespace {

constexpr int64_t kCheckEvery = 2000;  // steps: about ten microseconds

// A quarter of the thread's stack remains for unwinding and for functions that do not count.
uintptr_t StackEnd() {
  thread_local const uintptr_t end = []() -> uintptr_t {
    pthread_attr_t attributes;
    if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return 0;  // no memory: no limit
    void* low = nullptr;
    size_t size = 0;
    ::pthread_attr_getstack(&attributes, &low, &size);
    ::pthread_attr_destroy(&attributes);
    return reinterpret_cast<uintptr_t>(low) + size / 4;
  }();
  return end;
}

std::string Decimal(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

WorkBudget::WorkBudget(double seconds, int64_t steps, const std::atomic<bool>* cancelled)
    : end_(std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds))),
      seconds_(seconds),
      max_steps_(steps),
      cancelled_(cancelled),
      stack_end_(StackEnd()) {
  budget_of_this_thread = this;
}

WorkBudget::~WorkBudget() { budget_of_this_thread = nullptr; }

void WorkBudget::ThrowTooDeep() {
  throw OutOfWork(StatusCode::kInvalidArgument,
                  "its references nest too deeply: the limit is three quarters of a thread's stack");
}

void WorkBudget::Check() {
  next_check_ = steps_ + kCheckEvery;
  if (cancelled_ != nullptr && *cancelled_) throw OutOfWork(StatusCode::kCancelled, "it was cancelled");
  if (steps_ > max_steps_) {
    throw OutOfWork(StatusCode::kInvalidArgument,
                    "it takes more than " + std::to_string(max_steps_) + " steps of work, the limit");
  }
  if (std::chrono::steady_clock::now() > end_) {
    throw OutOfWork(StatusCode::kInvalidArgument, "it takes longer than " + Decimal(seconds_) + " s, the limit");
  }
}

}  // namespace dsv4::server
