// Divides the time of the engine's thread into the model's passes and the kinds of work between them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace dsv4::server {

// kTokens: draws, grammars, replies. kRest: all other work, such as planning a step.
enum class StepWork : uint8_t { kPass, kAdmission, kSnapshot, kReply, kEviction, kTokens, kRest };
inline constexpr std::array kStepWorkNames = {"pass", "admission", "snapshot", "reply", "eviction", "tokens", "rest"};
using WorkSeconds = std::array<double, kStepWorkNames.size()>;  // by StepWork

// Seconds of all work but the passes.
inline double HostSeconds(const WorkSeconds& seconds) {
  double sum = 0;
  for (size_t i = 1; i < seconds.size(); ++i) sum += seconds[i];
  return sum;
}

class StepClock {
 public:
  using Clock = std::chrono::steady_clock;
  using NowFn = std::function<Clock::time_point()>;  // empty: Clock::now

  explicit StepClock(NowFn now) : now_(std::move(now)), since_(Now()) {}

  Clock::time_point Now() const { return now_ ? now_() : Clock::now(); }

  // Time counts as `work`. Returns what it counted as before.
  StepWork Switch(StepWork work) {
    const auto now = Now();
    last_ = std::chrono::duration<double>(now - since_).count();
    seconds_[static_cast<size_t>(work_)] += last_;
    since_ = now;
    return std::exchange(work_, work);
  }
  double last() const { return last_; }  // seconds that ended with the last Switch

  // Returns the seconds since the last call, without the last `kept` seconds of passes, which belong to the next step.
  WorkSeconds Take(double kept = 0) {
    Switch(work_);
    WorkSeconds next = {};
    next[0] = kept;
    seconds_[0] -= kept;
    return std::exchange(seconds_, next);
  }

  // Forgets what was counted: the thread was idle.
  void Restart() {
    since_ = Now();
    seconds_ = {};
  }

 private:
  const NowFn now_;
  Clock::time_point since_;
  StepWork work_ = StepWork::kRest;
  WorkSeconds seconds_ = {};
  double last_ = 0;
};

// Counts time as `work` during its lifetime. What is inside another one counts only as its own work.
class WorkSpan {
 public:
  WorkSpan(StepClock& clock, StepWork work) : clock_(clock), before_(clock.Switch(work)) {}
  ~WorkSpan() { clock_.Switch(before_); }
  WorkSpan(const WorkSpan&) = delete;
  WorkSpan& operator=(const WorkSpan&) = delete;

 private:
  StepClock& clock_;
  const StepWork before_;
};

}  // namespace dsv4::server
