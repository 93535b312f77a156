// What the engine has counted of its experts, for metrics and for --count-experts. One thread: the engine's.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

class ExpertWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLookEvery{5'000}, kWriteEvery{60'000};

  // Looks at once: what has been counted by then is no traffic. `file`: written so often, and when Finish is called,
  // where something was counted; empty: none. `kept`: what it holds, to which is added.
  ExpertWatch(Engine& engine, Metrics& metrics, std::string file, ExpertCounts kept = {},
              std::chrono::milliseconds write_every = kWriteEvery);

  // Between steps; `idle`: none follows at once. Asks the engine every few seconds, or when it is idle.
  // An error is what the file could not be written for, one line: it is tried again as often, in silence.
  Status Look(bool idle, Clock::time_point now = Clock::now());
  Status Finish();
  // When an idle engine is to be looked at, as counts are not written yet.
  std::optional<Clock::time_point> next_write() const;

 private:
  Status Take(bool write);

  Engine& engine_;
  Metrics& metrics_;
  std::optional<ExpertCountsFile> file_;
  const std::chrono::milliseconds write_every_;
  Clock::time_point next_look_, next_write_;
  bool counts_ = true;  // until the engine says that it does not
  bool gains_ = false;  // what is not written yet
  bool failed_ = false;
};

}  // namespace dsv4::server
