// W3C Trace Context: which trace a request belongs to.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits; "": none
  std::string span_id;    // 16, of what this server does for the request
  std::string parent_id;  // 16, of the caller's span; "": the trace begins here
  bool sampled = true;    // the caller wants its spans kept
};

// `n` random hexadecimal digits, not all of them zeros.
std::string RandomHex(int n);

// Of the header traceparent, with a new span. One that is missing or malformed gives a context without ids.
TraceContext ReadTraceParent(std::string_view header);

// A trace that begins here.
TraceContext NewTrace();

}  // namespace dsv4::server
