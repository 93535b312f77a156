// What is known of one request besides its header: for its line in the log and for its spans. Made by the gate,
// completed by its reply, read at its end: all on the I/O thread.
#pragma once

#include <chrono>
#include <string>

#include "server/observe/trace.h"
#include "server/schedule/generation.h"

namespace dsv4::server {

struct RequestNote {
  std::chrono::system_clock::time_point time = std::chrono::system_clock::now();  // of arrival
  Clock::time_point arrived = Clock::now();
  std::string key;       // label of its API key; "": none was asked for
  TraceContext trace{};  // of the request's own span; without ids where nobody asked for any

  bool generates = false;  // a job was started; then:
  Clock::time_point submitted{};
  TokenCounts counts{};  // so far
  SequenceTimes times{};
  const char* finish = "";  // of the sequence that ended last; "": none has
};

}  // namespace dsv4::server
