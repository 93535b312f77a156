// Data about one request, in addition to its header, for its log line and its spans. The gate makes it, the reply
// completes it, and it is read at the end of the request; all on the I/O thread.
#pragma once

#include <chrono>
#include <string>

#include "server/observe/trace.h"
#include "server/schedule/generation.h"

namespace dsv4::server {

struct RequestNote {
  std::chrono::system_clock::time_point time = std::chrono::system_clock::now();  // time of arrival
  Clock::time_point arrived = Clock::now();
  std::string key;       // label of its API key; "": the server has no keys
  TraceContext trace{};  // of the request's own span; without ids if neither the client nor --otlp-endpoint wants spans

  bool generates = false;  // a job was started; the members below are set then
  Clock::time_point submitted{};
  TokenCounts counts{};  // so far
  SequenceTimes times{};
  const char* finish = "";  // finish reason of the sequence that ended last; "": none has ended
};

}  // namespace dsv4::server
