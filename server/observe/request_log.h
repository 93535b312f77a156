// Log lines about each request and about the throughput of all requests.
#pragma once

#include <chrono>

#include "server/base/log.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

// Writes one line with everything known about a request, at its end.
void LogRequest(const Log& log, const HttpRequest& request, const HttpDone& done);

// Writes a line at an interval while there is work: prompt and output tokens per second, sequences, share of KV memory
// in use, and share of prompt tokens that came from the cache. Used on one thread.
class ThroughputLog {
 public:
  ThroughputLog(const Log& log, const Metrics& metrics) : log_(log), metrics_(metrics) {}

  void Begin();
  // Returns false, without a line, if nothing has been done since the last call and nothing waits.
  bool Tell(const Gauges& gauges);

 private:
  const Log& log_;
  const Metrics& metrics_;
  Metrics::Totals last_;
  std::chrono::steady_clock::time_point last_time_;
};

}  // namespace dsv4::server
