// A file with one line for each step of the engine: its tokens, times, and what the scheduler expected (--trace-steps).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "dsv4/status.h"
#include "server/metrics/step_clock.h"
#include "server/schedule/step_times.h"

namespace dsv4::server {

struct StepRecord {
  double end_s = 0;                  // since the start
  StepShape shape = {};              // of all passes
  WorkSeconds seconds = {};          // since the end of the step before
  double distance = 1, guess_s = 0;  // of the passes; the guess is from before them
  int64_t budget = 0;                // prompt tokens that the step had room for; 0: no prompt waited
  double bound_s = 0;                // for the passes; 0: none
  int64_t limit = 0;                 // sequences that may run
};

class StepTrace {
 public:
  static constexpr size_t kMostSteps = 32768;  // the last ones are kept

  explicit StepTrace(std::string path) : path_(std::move(path)) {}
  bool on() const { return !path_.empty(); }

  void Add(const StepRecord& step);
  // Writes the file. Does nothing if there is none to write.
  Status Write() const;

 private:
  const std::string path_;
  std::deque<StepRecord> steps_;
};

// Checks that a trace can be written to `path`: writes one without steps. An empty path is fine.
Status CheckTraceFile(const std::string& path);

}  // namespace dsv4::server
