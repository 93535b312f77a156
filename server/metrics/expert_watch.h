// Reads the engine's expert counts for the metrics and for --count-experts. One thread: the engine's.
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

  // Reads the counts at once; what was counted before is not traffic. `file`: written every `write_every`, and by
  // Finish, if something was counted; empty: none. `kept`: the counts in the file, to which new ones are added.
  ExpertWatch(Engine& engine, Metrics& metrics, std::string file, ExpertCounts kept = {},
              std::chrono::milliseconds write_every = kWriteEvery);

  // Called between steps. `idle`: no step follows at once. Reads the engine's counts every few seconds, or when idle.
  // Returns an error if the file could not be written. Later attempts are as frequent, and their errors are not
  // reported.
  Status Look(bool idle, Clock::time_point now = Clock::now());
  Status Finish();
  // When an idle engine's counts must be read again because some are not written yet.
  std::optional<Clock::time_point> next_write() const;

 private:
  Status Take(bool write);

  Engine& engine_;
  Metrics& metrics_;
  std::optional<ExpertCountsFile> file_;
  const std::chrono::milliseconds write_every_;
  Clock::time_point next_look_, next_write_;
  bool counts_ = true;  // until the engine reports that it does not count
  bool gains_ = false;  // some counts are not written yet
  bool failed_ = false;
};

}  // namespace dsv4::server
