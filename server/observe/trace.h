// W3C Trace Context: the trace that a request belongs to.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits; "": none
  std::string span_id;    // 16 digits: the server's span of the request
  std::string parent_id;  // 16 digits: the caller's span; "": the trace begins here
  bool sampled = true;    // the caller wants its spans to be kept
};

// Reads the header traceparent and makes a new span. A missing or malformed header gives a context without ids.
TraceContext ReadTraceParent(std::string_view header);

// Begins a new trace.
TraceContext NewTrace();

}  // namespace dsv4::server
