// Replies that are streamed as server-sent events or sent as a whole.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api.h"

namespace dsv4::server {

// The reply of one job. Each route derives its form from it. All calls are made on the I/O thread, in order.
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

  // Starts `job` with this object as the receiver of its output. Throws ApiError. The head of a stream is sent after
  // the job has entered the queue, so that a full queue gives a 429.
  void Run(const std::shared_ptr<Job>& job);

  // Begins a stream and sends the error in it.
  void FailAtOnce(const ApiError& error);

 protected:
  virtual std::string Begin() { return {}; }  // first bytes of a stream, before all output; may run on another thread
  virtual void Take(StepOutput& output) = 0;
  virtual void AfterStep() {}  // called after every output of a step has been taken
  virtual void End() = 0;      // called when all sequences have ended
  // For End: the reply is this error.
  void EndWith(ApiError error) { end_error_ = std::move(error); }

  virtual std::string ErrorEvent(const ApiError& error);
  virtual HeaderList Headers() const { return {}; }
  virtual bool KeepsLogprobs() const { return !stream_; }  // keeps log-probabilities until the end
  virtual std::string Ping() const { return ": ping\n\n"; }

  void Event(const Json& data) { pending_ += "data: " + Dump(data) + "\n\n"; }
  // Sends an object that was dumped before, with the members of `rest` added at its end.
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
  // Returns `ids` and the ids of an output, EOS and stop ids included.
  static std::vector<TokenId> IdsOf(const StepOutput& output, std::vector<TokenId> ids) {
    for (const OutputToken& token : output.tokens) ids.push_back(token.id);
    if (output.end) ids.push_back(output.end->id);
    return ids;
  }

  UsageSum usage_;     // of the outputs given to Take, including the current one
  std::string whole_;  // JSON, set by End() if the reply is not streamed

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
  std::optional<ApiError> end_error_;
  bool with_logprobs_ = false;
  int64_t logprobs_ = 0;  // number that is kept, or of this step only
  std::string pending_;
  std::weak_ptr<Job> job_;
};

}  // namespace dsv4::server
