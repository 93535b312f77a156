// Spans of requests, exported by OTLP as JSON over HTTP: POST /v1/traces of a collector.
//
// A thread of its own sends them, in batches. What a collector does not take in time is dropped and counted; requests
// wait for nothing.
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

  // `endpoint`: http://HOST[:PORT][/PATH]; 4318 and /v1/traces where it names none. `on_error`: one line, at most once
  // a minute, by the exporter's thread. Errors: kInvalidArgument.
  static Result<std::unique_ptr<SpanExporter>> Create(const std::string& endpoint, std::string model_name,
                                                      std::function<void(const std::string&)> on_error);
  ~SpanExporter();  // sends what waits, once

  // A request's spans: its own, and for one that generated its time in the queue, in its prompt and in its tokens.
  // Never waits.
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
  const std::string head_;  // of a message, in front of its spans
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> waiting_;  // as they are sent: to let go of JSON values may need memory
  std::vector<std::string> batch_;    // of the thread; with room for all from the beginning
  Counts counts_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
