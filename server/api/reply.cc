#include "server/api/reply.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "server/observe/request_note.h"

namespace dsv4::server {

namespace {

// Limit for tokens and alternatives with log-probabilities. Each takes about 1 KB until it is sent. A prompt of 40,000
// tokens with five alternatives each is below the limit.
constexpr int64_t kMostLogprobs = int64_t{1} << 18;

bool WantsLogprobs(const SequenceSpec& s) {
  return s.params->sampling.top_logprobs >= 0 || s.params->prompt_logprobs >= 0;
}

ApiError TooManyLogprobs() {
  return {400,
          "the reply has too many log-probabilities: the limit is " + std::to_string(kMostLogprobs) +
              " tokens and alternatives; request fewer tokens, alternatives or completions, or stream completions",
          "logprobs"};
}

// Returns the number of log-probabilities of the prompts, which do not depend on the model's reply. A prompt's first
// token has no alternatives.
int64_t LogprobsOfPrompts(const Job& job) {
  int64_t count = 0;
  for (const SequenceSpec& s : job.sequences) {
    const int64_t top = s.params->prompt_logprobs, tokens = std::ssize(*s.prompt);
    if (top >= 0) count += tokens + (tokens - 1) * top;
  }
  return count;
}

}  // namespace

void Reply::Run(const std::shared_ptr<Job>& job) {
  job_ = job;
  with_logprobs_ = std::any_of(job->sequences.begin(), job->sequences.end(), WantsLogprobs);
  if (KeepsLogprobs() && LogprobsOfPrompts(*job) > kMostLogprobs) throw TooManyLogprobs();
  const auto self = shared_from_this();
  job->on_output = [self](std::vector<StepOutput>& outputs) { self->OnOutput(outputs); };
  try {
    Start(api_, exchange_, job);
  } catch (...) {
    job->on_output = nullptr;
    throw;
  }
  StartStream();
}

// Called by the thread that reads the request, so it does not touch the note, which belongs to the I/O thread.
void Reply::FailAtOnce(const ApiError& error) {
  StartStream();
  SendFailure(error);
}

// Called by the thread that submitted the job and by the thread that has its first output. The first call counts.
void Reply::StartStream() {
  if (!stream_) return;
  std::call_once(started_, [this] {
    HeaderList headers = Headers();
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");
    exchange_->StartStream(200, "text/event-stream; charset=utf-8", std::move(headers));
    std::string begin = Begin();
    if (!begin.empty()) exchange_->Write(std::move(begin));
    const double ping_s = api_.options.ping_s;
    if (ping_s > 0)
      exchange_->SetPing(Ping(), std::chrono::seconds(std::max<int64_t>(1, static_cast<int64_t>(ping_s))));
  });
}

std::string Reply::ErrorEvent(const ApiError& error) {
  return "data: " + Dump(ErrorBody(form_, error, exchange_->request().id)) + "\n\n";
}

// If memory runs out, only this reply ends.
void Reply::OnOutput(std::vector<StepOutput>& outputs) {
  if (over_) return;
  try {
    TakeAll(outputs);
  } catch (const std::bad_alloc&) {
    over_ = true;
    if (const auto job = job_.lock()) api_.scheduler.Cancel(job);
    exchange_->OutOfMemory();
  }
}

void Reply::TakeAll(std::vector<StepOutput>& outputs) {
  StartStream();
  if (!KeepsLogprobs()) logprobs_ = 0;
  const char* finish = "";
  for (StepOutput& output : outputs) {
    usage_.Set(output);
    if (output.finish == FinishReason::kError) return Fail(ToApiError(output.error));
    if (output.finish == FinishReason::kCancelled) {
      over_ = true;  // its client has left
      return;
    }
    if (HoldsTooMuch(output)) return Fail(TooManyLogprobs());
    const bool ended = output.finish != FinishReason::kNone;
    Take(output);
    if (ended) --num_open_;
    finish = ended ? FinishReasonName(output.finish) : "";
  }
  Note(finish);
  AfterStep();
  if (num_open_ > 0) return Flush();
  over_ = true;
  End();
  if (end_error_) return SendFailure(*end_error_);
  if (stream_) {
    Flush();
    exchange_->FinishStream();
  } else {
    exchange_->Respond(200, "application/json", std::move(whole_), Headers());
  }
}

bool Reply::HoldsTooMuch(const StepOutput& output) {
  if (!with_logprobs_) return false;
  for (const auto* tokens : {&output.prompt, &output.tokens}) {
    for (const OutputToken& token : *tokens) logprobs_ += 1 + static_cast<int64_t>(token.top.size());
  }
  return logprobs_ > kMostLogprobs;
}

// Updates the request's log line after every step, because the client may leave at any time.
void Reply::Note(const char* finish) {
  RequestNote* note = exchange_->request().note.get();
  if (note == nullptr) return;
  note->generates = true;
  if (const auto job = job_.lock()) note->submitted = job->submitted;
  note->counts = usage_.Total();
  note->times = usage_.Times();
  note->finish = finish;
}

void Reply::Fail(const ApiError& error) {
  Note("error");
  if (const auto job = job_.lock()) api_.scheduler.Cancel(job);
  SendFailure(error);
}

void Reply::SendFailure(const ApiError& error) {
  over_ = true;
  if (error.status >= 500 && api_.on_failure) api_.on_failure(exchange_->request().id, error.what());
  if (!stream_) return RespondError(*exchange_, form_, error);
  Raw(ErrorEvent(error));
  Flush();
  exchange_->FinishStream();
}

void Reply::Flush() {
  if (stream_ && !pending_.empty()) exchange_->Write(std::exchange(pending_, ""));
}

}  // namespace dsv4::server
