// Replies that are streamed as server-sent events or sent whole.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api.h"

namespace dsv4::server {

// One job's reply. The routes derive the form from it; all calls come on the I/O thread, in order.
class Reply : public std::enable_shared_from_this<Reply> {
 public:
  Reply(const Api& api, ExchangePtr exchange, ErrorForm form, bool stream, size_t num_sequences,
        int sequences_per_prompt = 1)
      : api_(api),
        exchange_(std::move(exchange)),
        form_(form),
        stream_(stream),
        usage_(sequences_per_prompt),
        num_open_(num_sequences) {}
  virtual ~Reply() = default;

  // Starts `job` with this as the receiver of its output. Throws ApiError. The head of a stream is sent when the job
  // has been taken into the queue, so that a full queue is a 429.
  void Run(const std::shared_ptr<Job>& job);

  // Of a stream: it begins, and fails.
  void FailAtOnce(const ApiError& error);

 protected:
  virtual std::string Begin() { return {}; }  // of a stream: what goes before all output; perhaps on another thread
  virtual void Take(StepOutput& output) = 0;
  virtual void AfterStep() {}  // every output of this step has been taken
  virtual void End() = 0;      // all sequences have ended

  virtual std::string ErrorEvent(const ApiError& error);
  virtual HeaderList Headers() const { return {}; }
  virtual bool KeepsLogprobs() const { return !stream_; }  // until the end
  virtual std::string Ping() const { return ": ping\n\n"; }

  void Event(const Json& data) { pending_ += "data: " + Dump(data) + "\n\n"; }
  // The members of `rest` behind those of an object that was dumped before.
  void EventBehind(const std::string& head, const Json& rest) {
    pending_.append("data: ").append(head, 0, head.size() - 1).append(",").append(Dump(rest), 1).append("\n\n");
  }
  static std::string NamedEventText(const std::string& name, const std::string& data) {
    return "event: " + name + "\ndata: " + data + "\n\n";
  }
  void NamedEvent(const std::string& name, const Json& data) { pending_ += NamedEventText(name, Dump(data)); }
  void Raw(std::string_view bytes) { pending_ += bytes; }

  const Api& api_;
  const ExchangePtr exchange_;
  const ErrorForm form_;
  const bool stream_;
  UsageSum usage_;     // of what Take has been given, that one included
  std::string whole_;  // JSON, set by End() where the reply is not streamed

 private:
  void OnOutput(std::vector<StepOutput>& outputs);
  void TakeAll(std::vector<StepOutput>& outputs);
  bool HoldsTooMuch(const StepOutput& output);
  void Note(const char* finish);
  void Fail(const ApiError& error);
  void SendFailure(const ApiError& error);
  void StartStream();
  void Flush();

  size_t num_open_;
  std::once_flag started_;
  bool over_ = false;
  bool with_logprobs_ = false;
  int64_t logprobs_ = 0;  // that are kept, else those of this step
  std::string pending_;
  std::weak_ptr<Job> job_;
};

}  // namespace dsv4::server
