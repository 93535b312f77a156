// What the log and the traces get to know of each request, and of all of them together.
#pragma once

#include <chrono>

#include "server/base/log.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

// A line with everything that is known of a request, at its end.
void LogRequest(const Log& log, const HttpRequest& request, const HttpDone& done);

// A line every so often while there is work: tokens a second of prompts and replies, sequences, share of KV and of
// prompts that came from the cache. On one thread.
class ThroughputLog {
 public:
  ThroughputLog(const Log& log, const Metrics& metrics) : log_(log), metrics_(metrics) {}

  void Begin();
  // False: nothing has been done since the last call, and nothing waits.
  bool Tell(const Gauges& gauges);

 private:
  const Log& log_;
  const Metrics& metrics_;
  Metrics::Totals last_;
  std::chrono::steady_clock::time_point last_time_;
};

}  // namespace dsv4::server
