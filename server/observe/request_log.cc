#include "server/observe/request_log.h"

#include <chrono>
#include <string>
#include <vector>

#include "server/observe/request_note.h"
#include "server/observe/usage.h"

namespace dsv4::server {

namespace {

double Percent(double part, double whole) { return whole > 0 ? Rounded(100 * part / whole, 1) : 0; }

void AddGeneration(const RequestNote& note, std::vector<LogField>* fields) {
  const auto ms = [](double seconds) { return Rounded(1e3 * seconds, 1); };
  fields->insert(fields->end(), {{"prompt_tokens", note.counts.prompt},
                                 {"cached_tokens", note.counts.cached},
                                 {"output_tokens", note.counts.completion},
                                 {"queue_ms", ms(note.times.queued)}});
  if (note.counts.completion > 0) {
    fields->push_back({"first_token_ms", ms(note.times.queued + note.times.prompt)});
    fields->push_back({"tokens_per_s", Rounded(TokensPerSecond(note.counts, note.times), 1)});
  }
  fields->push_back({"accepted_drafts", note.counts.drafted});
  fields->push_back({"finish", std::string(*note.finish != '\0' ? note.finish : "abort")});
}

}  // namespace

void LogRequest(const Log& log, const HttpRequest& request, const HttpDone& done) {
  // A stream that has started has status 200; its last event reports the error.
  const RequestNote* note = request.note.get();
  const bool failed = done.status < 400 && note != nullptr && note->generates && note->finish == std::string("error");
  std::vector<LogField> fields = {
      {"id", request.id},
      {"peer", request.peer},
      {"method", request.method},
      {"path", request.path.substr(0, 200)},
      {"status", int64_t{done.status}},
      {"complete", done.complete && !failed},
      {"incomplete", std::string(failed && done.incomplete.empty() ? "an error" : done.incomplete)},
      {"bytes", static_cast<int64_t>(done.sent_bytes)},
      {"ms", Rounded(1e3 * done.seconds, 1)}};
  if (note != nullptr) {
    fields.push_back({"key", note->key});
    fields.push_back({"trace", note->trace.trace_id});
    if (note->generates) AddGeneration(*note, &fields);
  }
  log.Line(done.status >= 500 ? LogLevel::kError : LogLevel::kInfo, "request", fields);
}

void ThroughputLog::Begin() {
  last_ = metrics_.totals();
  last_time_ = std::chrono::steady_clock::now();
}

bool ThroughputLog::Tell(const Gauges& g) {
  const Metrics::Totals now = metrics_.totals();
  const auto time = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(time - last_time_).count();
  const auto prompt = static_cast<double>(now.prompt_tokens - last_.prompt_tokens);
  const auto generated = static_cast<double>(now.generated_tokens - last_.generated_tokens);
  const auto looked_up = static_cast<double>(now.prefix_queries - last_.prefix_queries);
  const auto hits = static_cast<double>(now.prefix_hits - last_.prefix_hits);
  last_ = now;
  last_time_ = time;
  if (prompt + generated == 0 && g.running + g.waiting == 0) return false;
  log_.Line("throughput",
            {{"prompt_tokens_per_s", Rounded(prompt / seconds, 1)},
             {"output_tokens_per_s", Rounded(generated / seconds, 1)},
             {"running", g.running},
             {"waiting", g.waiting},
             {"kv_percent", Percent(static_cast<double>(g.kv_used_bytes), static_cast<double>(g.kv_budget_bytes))},
             {"cached_percent", Percent(hits, looked_up)},
             {"seconds", Rounded(seconds, 1)}});
  return true;
}

}  // namespace dsv4::server
