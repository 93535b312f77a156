// Spans of requests, exported with OTLP as JSON over HTTP: POST /v1/traces of a collector.
//
// A separate thread sends them in batches. Spans that the collector does not take in time are dropped and counted; no
// request waits for the collector.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dsv4/status.h"
#include "server/base/json.h"
#include "server/http/http.h"
#include "server/observe/request_note.h"

namespace dsv4::server {

class SpanExporter {
 public:
  struct Counts {
    uint64_t sent = 0, dropped = 0;
  };

  // `endpoint`: http://HOST[:PORT][/PATH]; default port 4318, default path /v1/traces. `on_error`: called with one
  // line, at most once a minute, on the exporter's thread. Errors: kInvalidArgument.
  static Result<std::unique_ptr<SpanExporter>> Create(const std::string& endpoint, std::string model_name,
                                                      std::function<void(const std::string&)> on_error);
  ~SpanExporter();  // tries once to send the waiting spans

  // Adds the span of a request. For a request that generated, also adds the spans of its queue time, its prompt and its
  // output tokens. Never blocks.
  void Add(const HttpRequest& request, const HttpDone& done);
  Counts counts() const;

 private:
  struct Address {
    std::string host, port, path;
  };
  SpanExporter(Address address, std::string model_name, std::function<void(const std::string&)> on_error);

  void Run();
  Status Post() const;

  const Address address_;
  const std::string model_name_;
  const std::function<void(const std::string&)> on_error_;
  const std::string head_;  // the beginning of a message, before its spans
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> waiting_;  // as text: freeing JSON values may need memory
  std::vector<std::string> batch_;    // used by the thread; reserved for a full batch at the start
  Counts counts_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
