#include "metrics.h"

#include <unistd.h>

#include <charconv>
#include <fstream>

namespace dsv4::server {

namespace {

constexpr std::array kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2,  0.25,  0.3,
                                 0.4,   0.5,    0.75,  1.0,  2.5,  5.0,  7.5,  10.0, 30.0, 60.0, 300.0, 1800.0};
constexpr std::array kTokens = {1.0,     2.0,      5.0,      10.0,     20.0,     50.0,    100.0,
                                200.0,   500.0,    1000.0,   2000.0,   5000.0,   10000.0, 20000.0,
                                50000.0, 100000.0, 200000.0, 500000.0, 1000000.0};

std::string Number(double value) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

class Page {
 public:
  explicit Page(std::string label) : label_(std::move(label)) {}

  void Head(const std::string& name, const char* type, const char* help) {
    out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void Value(const std::string& name, const std::string& more_labels, double value) {
    out += name + "{" + label_ + more_labels + "} " + Number(value) + "\n";
  }
  void One(const std::string& name, const char* type, const char* help, double value) {
    Head(name, type, help);
    Value(name, "", value);
  }
  void Counts(const std::string& name, const char* help, const char* key,
              const std::map<std::string, uint64_t>& counts) {
    Head(name, "counter", help);
    for (const auto& [value, count] : counts) {
      Value(name, std::string(",") + key + "=\"" + value + "\"", static_cast<double>(count));
    }
  }
  std::string out;

 private:
  std::string label_;
};

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void Histogram::Add(double value) {
  size_t i = 0;
  while (i < bounds_.size() && value > bounds_[i]) ++i;
  ++counts_[i];
  sum_ += value;
}

void Histogram::Render(const std::string& name, const std::string& help, const std::string& labels,
                       std::string* out) const {
  *out += "# HELP " + name + " " + help + "\n# TYPE " + name + " histogram\n";
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    *out += name + "_bucket{" + labels + ",le=\"" + (i < bounds_.size() ? Number(bounds_[i]) : "+Inf") +
            "\"} " + std::to_string(total) + "\n";
  }
  *out += name + "_sum{" + labels + "} " + Number(sum_) + "\n";
  *out += name + "_count{" + labels + "} " + std::to_string(total) + "\n";
}

Metrics::Metrics(std::string model_name)
    : model_label_("model_name=\"" + Escape(model_name) + "\""),
      success_{{"abort", 0}, {"error", 0}, {"length", 0}, {"stop", 0}, {"tool_calls", 0}},
      first_token_(kSeconds),
      token_gap_(kSeconds),
      decode_step_(kSeconds),
      total_(kSeconds),
      queue_(kSeconds),
      prefill_(kSeconds),
      decode_(kSeconds),
      step_tokens_(kTokens),
      request_prompt_(kTokens),
      request_generated_(kTokens) {}

void Metrics::AddStep(const Step& step) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(step.prompt_tokens);
  generation_tokens_ += static_cast<uint64_t>(step.generated_tokens);
  step_tokens_.Add(static_cast<double>(step.prompt_tokens + step.generated_tokens));
  for (const double s : step.first_token_s) first_token_.Add(s);
  for (const double s : step.token_gaps_s) token_gap_.Add(s);
  if (step.decode_s > 0) decode_step_.Add(step.decode_s);
  gaps_over_bound_ += static_cast<uint64_t>(step.gaps_over_bound);
  if (step.drafts.steps > 0) drafts_ = step.drafts;
}

void Metrics::AddRequest(const Request& r) {
  const std::lock_guard lock(mutex_);
  ++success_[r.reason];
  request_prompt_.Add(static_cast<double>(r.prompt_tokens));
  request_generated_.Add(static_cast<double>(r.generated_tokens));
  queue_.Add(r.queue_s);
  prefill_.Add(r.prefill_s);
  decode_.Add(r.decode_s);
  total_.Add(r.total_s);
}

void Metrics::AddPreemption() {
  const std::lock_guard lock(mutex_);
  ++preemptions_;
}

void Metrics::AddPrefixLookup(int64_t prompt_tokens, int64_t hit_tokens, const char* what) {
  const std::lock_guard lock(mutex_);
  prefix_queries_ += static_cast<uint64_t>(prompt_tokens);
  prefix_hits_ += static_cast<uint64_t>(hit_tokens);
  ++(hit_tokens > 0 ? hits_ : misses_)[what];
}

void Metrics::AddEviction() {
  const std::lock_guard lock(mutex_);
  ++evictions_;
}

void Metrics::AddKvDisk(const char* event) {
  const std::lock_guard lock(mutex_);
  ++kv_disk_[event];
}

void Metrics::AddRejection(const char* reason) {
  const std::lock_guard lock(mutex_);
  ++rejections_[reason];
}

void Metrics::SetExperts(const ExpertUse& use) {
  const std::lock_guard lock(mutex_);
  experts_ = use;
}

void Metrics::AddHttp(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++http_[{route, status}];
}

std::string Metrics::Render(const Gauges& g) const {
  const std::lock_guard lock(mutex_);
  Page page(model_label_);
  const auto budget = static_cast<double>(g.kv_budget_bytes);
  const double usage = budget > 0 ? static_cast<double>(g.kv_used_bytes) / budget : 0;
  page.One("vllm:num_requests_running", "gauge", "Sequences in the batch.", static_cast<double>(g.running));
  page.One("vllm:num_requests_waiting", "gauge", "Sequences in the queue.", static_cast<double>(g.waiting));
  page.One("vllm:kv_cache_usage_perc", "gauge",
           "Share of the KV budget that running sequences hold (1: all).", usage);
  page.One("vllm:num_preemptions_total", "counter", "Sequences that gave their KV back and start over.",
           static_cast<double>(preemptions_));
  page.One("vllm:prompt_tokens_total", "counter", "Prompt tokens computed.",
           static_cast<double>(prompt_tokens_));
  page.One("vllm:generation_tokens_total", "counter", "Tokens generated.",
           static_cast<double>(generation_tokens_));
  page.One("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
           static_cast<double>(prefix_queries_));
  page.One("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there.",
           static_cast<double>(prefix_hits_));
  page.One("vllm:spec_decode_num_drafts_total", "counter", "Drafts that were verified.",
           static_cast<double>(drafts_.verifications));
  page.One("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens of them.",
           static_cast<double>(drafts_.drafted));
  page.One("vllm:spec_decode_num_accepted_tokens_total", "counter", "Tokens of them that were right.",
           static_cast<double>(drafts_.accepted));
  page.Head("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "The same by place in the draft.");
  for (size_t i = 0; i < drafts_.accepted_at.size(); ++i) {
    page.Value("vllm:spec_decode_num_accepted_tokens_per_pos_total", ",position=\"" + std::to_string(i) + "\"",
               static_cast<double>(drafts_.accepted_at[i]));
  }
  page.One("dsv4:decode_steps_total", "counter", "Steps of decoding, with drafts or without.",
           static_cast<double>(drafts_.steps));
  page.Head("dsv4:spec_decode_seconds_total", "counter", "Time of drafting, and of steps that hold drafts.");
  page.Value("dsv4:spec_decode_seconds_total", ",phase=\"draft\"", drafts_.draft_s);
  page.Value("dsv4:spec_decode_seconds_total", ",phase=\"verify\"", drafts_.verify_s);
  page.Counts("vllm:request_success_total", "Finished sequences by reason.", "finished_reason", success_);
  first_token_.Render("vllm:time_to_first_token_seconds", "Arrival to first token.", model_label_, &page.out);
  token_gap_.Render("vllm:inter_token_latency_seconds", "Time between tokens of a sequence.", model_label_,
                    &page.out);
  token_gap_.Render("vllm:time_per_output_token_seconds", "The same under its older name.", model_label_,
                    &page.out);
  total_.Render("vllm:e2e_request_latency_seconds", "Arrival to end.", model_label_, &page.out);
  queue_.Render("vllm:request_queue_time_seconds", "Time in the queue.", model_label_, &page.out);
  prefill_.Render("vllm:request_prefill_time_seconds", "Start to first token.", model_label_, &page.out);
  decode_.Render("vllm:request_decode_time_seconds", "First token to end.", model_label_, &page.out);
  step_tokens_.Render("vllm:iteration_tokens_total", "Tokens of one step.", model_label_, &page.out);
  request_prompt_.Render("vllm:request_prompt_tokens", "Prompt tokens of a sequence.", model_label_, &page.out);
  request_generated_.Render("vllm:request_generation_tokens", "Tokens generated for a sequence.",
                            model_label_, &page.out);
  decode_step_.Render("dsv4:decode_step_seconds", "Steps without prompts.", model_label_, &page.out);
  page.One("dsv4:max_gap_seconds", "gauge", "The bound of the time between two tokens (0: none).", g.max_gap_s);
  page.One("dsv4:gaps_over_bound_total", "counter", "Times between two tokens beyond it.",
           static_cast<double>(gaps_over_bound_));
  page.One("dsv4:admission_limit", "gauge", "Sequences that may run within it, by the measured times.",
           static_cast<double>(g.admission_limit));
  page.Counts("dsv4:prefix_hit_total", "Sequences that go on from the prefix cache, by place.", "place", hits_);
  page.Counts("dsv4:prefix_miss_total", "Sequences that found nothing in the prefix cache, by reason.", "reason",
              misses_);
  page.Counts("dsv4:rejected_total", "Requests refused before they were queued, by reason.", "reason",
              rejections_);
  page.Head("dsv4:kv_bytes", "gauge", "Bytes of KV by use.");
  page.Value("dsv4:kv_bytes", ",use=\"running\"", static_cast<double>(g.kv_used_bytes));
  page.Value("dsv4:kv_bytes", ",use=\"kept\"", static_cast<double>(g.kv_kept_bytes));
  page.Value("dsv4:kv_bytes", ",use=\"budget\"", budget);
  page.Value("dsv4:kv_bytes", ",use=\"disk\"", static_cast<double>(g.kv_disk_bytes));
  page.Head("dsv4:prefix_cuts", "gauge", "Points that prompts can go on from, by place.");
  page.Value("dsv4:prefix_cuts", ",place=\"memory\"", static_cast<double>(g.cuts_in_memory));
  page.Value("dsv4:prefix_cuts", ",place=\"disk\"", static_cast<double>(g.cuts_on_disk));
  page.One("dsv4:prefix_evictions_total", "counter", "Cuts that made room in memory.", static_cast<double>(evictions_));
  page.Counts("dsv4:kv_disk_total", "Files of KV by what happened to them.", "event", kv_disk_);
  if (experts_.counted) {
    page.Head("dsv4:experts", "gauge", "Routed experts of all layers by the memory that holds them.");
    page.Value("dsv4:experts", ",place=\"device\"", static_cast<double>(experts_.experts - experts_.on_host));
    page.Value("dsv4:experts", ",place=\"host\"", static_cast<double>(experts_.on_host));
    page.One("dsv4:expert_host_bytes", "gauge", "Bytes of experts in host memory.",
             static_cast<double>(experts_.host_bytes));
    page.One("dsv4:expert_choices_total", "counter", "Experts that tokens chose.",
             static_cast<double>(experts_.chosen));
    page.One("dsv4:expert_hits_total", "counter", "Of them, those in the device's memory.",
             static_cast<double>(experts_.chosen_resident));
    page.One("dsv4:expert_fetched_bytes_total", "counter",
             "Bytes of experts in host memory that passes needed, once a pass.", experts_.fetched_bytes);
    page.One("dsv4:expert_swaps_total", "counter", "Pairs of experts that changed places between host and device.",
             static_cast<double>(experts_.swaps));
  }
  page.One("dsv4:connections", "gauge", "Open connections.", static_cast<double>(g.connections));
  page.One("dsv4:body_bytes", "gauge", "Bytes held for the bodies of requests.", static_cast<double>(g.body_bytes));
  page.One("dsv4:log_lines_dropped_total", "counter", "Lines of the log that nobody read in time.",
           static_cast<double>(g.log_lines_dropped));
  page.Head("dsv4:http_requests_total", "counter", "HTTP requests by route and status.");
  for (const auto& [key, count] : http_) {
    page.Value("dsv4:http_requests_total",
               ",route=\"" + Escape(key.first) + "\",status=\"" + std::to_string(key.second) + "\"",
               static_cast<double>(count));
  }
  page.One("process_resident_memory_bytes", "gauge", "Resident memory.", ResidentBytes());
  return std::move(page.out);
}

}  // namespace dsv4::server
