#include "server/metrics/metrics.h"

#include <string_view>
#include <utility>

#include "dsv4/version.h"
#include "server/metrics/metrics_page.h"

namespace dsv4::server {

namespace {

constexpr std::array kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.15, 0.2,   0.25,  0.3,
                                 0.4,   0.5,    0.75,  1.0,  2.5,  5.0,  7.5,  10.0, 30.0, 60.0, 300.0, 1800.0};
constexpr std::array kTokens = {1.0,     2.0,      5.0,      10.0,     20.0,     50.0,    100.0,
                                200.0,   500.0,    1000.0,   2000.0,   5000.0,   10000.0, 20000.0,
                                50000.0, 100000.0, 200000.0, 500000.0, 1000000.0};

// Returns the rank that a failure names: "rank 3 (after layer 5): ...", "GPU 1 sent nothing ..."; "" if it names none.
std::string RankNamedBy(const std::string& what) {
  for (const std::string_view name : {"rank ", "GPU "}) {
    if (!what.starts_with(name)) continue;
    const size_t end = what.find_first_not_of("0123456789", name.size());
    return what.substr(name.size(), end == std::string::npos ? end : end - name.size());
  }
  return "";
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
    *out += name + "_bucket{" + labels + ",le=\"" + (i < bounds_.size() ? MetricsPage::Number(bounds_[i]) : "+Inf") +
            "\"} " + std::to_string(total) + "\n";
  }
  *out += name + "_sum{" + labels + "} " + MetricsPage::Number(sum_) + "\n";
  *out += name + "_count{" + labels + "} " + std::to_string(total) + "\n";
}

Metrics::Metrics(std::string model_name, int num_ranks)
    : model_label_(MetricsPage::Label("model_name", model_name) + "," + MetricsPage::Label("engine", "0")),
      success_{{"abort", 0}, {"error", 0}, {"length", 0}, {"stop", 0}},
      kv_disk_{{"failed", 0}, {"foreign", 0}, {"refused", 0}, {"removed", 0}, {"restored", 0}, {"written", 0}},
      first_token_(kSeconds),
      token_gap_(kSeconds),
      decode_step_(kSeconds),
      pass_(kSeconds),
      host_(kSeconds),
      mean_gap_(kSeconds),
      total_(kSeconds),
      queue_(kSeconds),
      inference_(kSeconds),
      prefill_(kSeconds),
      decode_(kSeconds),
      step_tokens_(kTokens),
      request_prompt_(kTokens),
      request_generated_(kTokens) {
  // Set at the start, so that a rate sees the first failure.
  for (int rank = 0; rank < num_ranks; ++rank) device_failures_[std::to_string(rank)] = 0;
  if (num_ranks > 1) device_failures_["unknown"] = 0;
}

void Metrics::AddStep(const Step& step) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(step.prompt_tokens);
  generation_tokens_ += static_cast<uint64_t>(step.generated_tokens);
  step_tokens_.Add(static_cast<double>(step.prompt_tokens + step.generated_tokens));
  for (const double s : step.first_token_s) first_token_.Add(s);
  for (const double s : step.token_gaps_s) token_gap_.Add(s);
  if (step.decode_s > 0) decode_step_.Add(step.decode_s);
  pass_.Add(step.work_s[0]);
  host_.Add(HostSeconds(step.work_s));
  for (size_t i = 0; i < work_s_.size(); ++i) work_s_[i] += step.work_s[i];
  gaps_over_bound_ += static_cast<uint64_t>(step.gaps_over_bound);
  if (step.drafts.steps > 0) drafts_ = step.drafts;
}

void Metrics::AddRequest(const Request& r) {
  const std::lock_guard lock(mutex_);
  ++success_[r.reason];
  request_prompt_.Add(static_cast<double>(r.prompt_tokens));
  request_generated_.Add(static_cast<double>(r.generated_tokens));
  queue_.Add(r.queue_s);
  inference_.Add(r.prefill_s + r.decode_s);
  if (r.generated_tokens > 1) mean_gap_.Add(r.decode_s / static_cast<double>(r.generated_tokens - 1));
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

void Metrics::AddDeviceFailure(const std::string& what) {
  const std::lock_guard lock(mutex_);
  const auto rank = device_failures_.find(device_failures_.size() == 1 ? "0" : RankNamedBy(what));
  ++(rank != device_failures_.end() ? rank->second : device_failures_["unknown"]);
}

void Metrics::AddDeviceRestart() {
  const std::lock_guard lock(mutex_);
  ++device_restarts_;
}

void Metrics::SetExperts(const ExpertUse& use) {
  const std::lock_guard lock(mutex_);
  experts_ = use;
}

void Metrics::AddHttp(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++http_[{route, status}];
}

Metrics::Totals Metrics::totals() const {
  const std::lock_guard lock(mutex_);
  return {prompt_tokens_, generation_tokens_, prefix_queries_, prefix_hits_};
}

// Metrics with vLLM's names have vLLM's meaning and help text.
std::string Metrics::Render(const Gauges& g) const {
  const std::lock_guard lock(mutex_);
  MetricsPage page(model_label_);
  const auto budget = static_cast<double>(g.kv_budget_bytes);
  page.Gauge("vllm:num_requests_running", "Number of requests in model execution batches.", g.running);
  page.Gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", g.waiting);
  page.Gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
             budget > 0 ? static_cast<double>(g.kv_used_bytes) / budget : 0);
  RenderCacheConfig(g, &page);
  page.Counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", preemptions_);
  page.Counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", prompt_tokens_ + prefix_hits_);
  page.Counters("vllm:prompt_tokens_by_source_total", "Number of prompt tokens by source.", "source",
                {{"external_kv_transfer", 0}, {"local_cache_hit", prefix_hits_}, {"local_compute", prompt_tokens_}});
  page.Counter("vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", prefix_hits_);
  page.Counter("vllm:generation_tokens_total", "Number of generation tokens processed.", generation_tokens_);
  page.Counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.",
               prefix_queries_);
  page.Counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", prefix_hits_);
  page.Counters("vllm:request_success_total", "Count of successfully processed requests.", "finished_reason", success_);
  RenderDrafts(&page);
  RenderHistograms(&page);
  RenderWork(&page);
  RenderPrefixCache(g, &page);
  if (experts_.counted) RenderExperts(&page);
  RenderServer(g, &page);
  AddProcessMetrics(&page);
  return std::move(page.out);
}

void Metrics::RenderCacheConfig(const Gauges& g, MetricsPage* page) const {
  page->Head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
  page->Value("vllm:cache_config_info",
              "," + MetricsPage::Label("block_size", std::to_string(kKvPageTokens)) + "," +
                  MetricsPage::Label("num_gpu_blocks", std::to_string(g.kv_budget_pages)) + "," +
                  MetricsPage::Label("enable_prefix_caching", g.prefix_cache ? "True" : "False"),
              1);
}

void Metrics::RenderDrafts(MetricsPage* page) const {
  page->Counter("vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts.", drafts_.verifications);
  page->Counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.", drafts_.drafted);
  page->Counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.", drafts_.accepted);
  const auto by_position = [page](const char* name, const char* help, const auto& counts) {
    page->Head(name, "counter", help);
    for (size_t i = 0; i < counts.size(); ++i) {
      page->Value(name, "," + MetricsPage::Label("position", std::to_string(i)), static_cast<double>(counts[i]));
    }
  };
  by_position("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Accepted tokens per draft position.",
              drafts_.accepted_at);
  by_position("dsv4_spec_decode_num_draft_tokens_per_pos_total", "Draft tokens per draft position.",
              drafts_.drafted_at);
  page->Counter("dsv4_decode_steps_total", "Decode steps, with and without drafts.", drafts_.steps);
  page->Head("dsv4_spec_decode_seconds_total", "counter",
             "Seconds spent on drafting, on steps that verify drafts, and on other decode steps.");
  page->Value("dsv4_spec_decode_seconds_total", ",phase=\"draft\"", drafts_.draft_s);
  page->Value("dsv4_spec_decode_seconds_total", ",phase=\"verify\"", drafts_.verify_s);
  page->Value("dsv4_spec_decode_seconds_total", ",phase=\"rest\"", drafts_.rest_s);
}

void Metrics::RenderHistograms(MetricsPage* page) const {
  const auto render = [&](const Histogram& histogram, const char* name, const char* help) {
    histogram.Render(name, help, model_label_, &page->out);
  };
  render(first_token_, "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.");
  render(token_gap_, "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.");
  render(token_gap_, "vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.");
  render(mean_gap_, "vllm:request_time_per_output_token_seconds",
         "Histogram of time_per_output_token_seconds per request.");
  render(total_, "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.");
  render(queue_, "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.");
  render(inference_, "vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.");
  render(prefill_, "vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.");
  render(decode_, "vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.");
  render(step_tokens_, "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.");
  render(request_prompt_, "vllm:request_prompt_tokens", "Number of prefill tokens processed.");
  render(request_generated_, "vllm:request_generation_tokens", "Number of generation tokens processed.");
  render(decode_step_, "dsv4_decode_step_seconds", "Histogram of seconds per step without prompt tokens.");
  render(pass_, "dsv4_step_pass_seconds", "Histogram of seconds per step in the model's passes.");
  render(host_, "dsv4_step_host_seconds", "Histogram of seconds per step between the model's passes.");
}

void Metrics::RenderWork(MetricsPage* page) const {
  page->Head("dsv4_host_seconds_total", "counter",
             "Seconds of the engine's thread between the model's passes, by work.");
  for (size_t i = 1; i < work_s_.size(); ++i) {
    page->Value("dsv4_host_seconds_total", "," + MetricsPage::Label("work", kStepWorkNames[i]), work_s_[i]);
  }
}

void Metrics::RenderPrefixCache(const Gauges& g, MetricsPage* page) const {
  page->Counters("dsv4_prefix_hit_total", "Sequences that continue from a cached prefix, by its place.", "place",
                 hits_);
  page->Counters("dsv4_prefix_miss_total", "Sequences without a cached prefix, by reason.", "reason", misses_);
  const auto prefixes = [&](const char* name, const char* help) {
    page->Head(name, "gauge", help);
    page->Value(name, ",place=\"memory\"", static_cast<double>(g.cuts_in_memory));
    page->Value(name, ",place=\"disk\"", static_cast<double>(g.cuts_on_disk));
  };
  prefixes("dsv4_cached_prefixes", "Cached prefixes that prompts can continue from, by place.");
  prefixes("dsv4_prefix_cuts", "Deprecated: use dsv4_cached_prefixes.");
  page->Counter("dsv4_prefix_evictions_total", "Cached prefixes removed from memory to make room.", evictions_);
  page->Counters("dsv4_kv_disk_total", "KV files on disk, by event.", "event", kv_disk_);
  page->Head("dsv4_kv_bytes", "gauge", "Bytes of KV memory, by use.");
  page->Value("dsv4_kv_bytes", ",use=\"running\"", static_cast<double>(g.kv_used_bytes));
  page->Value("dsv4_kv_bytes", ",use=\"kept\"", static_cast<double>(g.kv_kept_bytes));
  page->Value("dsv4_kv_bytes", ",use=\"budget\"", static_cast<double>(g.kv_budget_bytes));
  page->Value("dsv4_kv_bytes", ",use=\"disk\"", static_cast<double>(g.kv_disk_bytes));
}

void Metrics::RenderExperts(MetricsPage* page) const {
  page->Head("dsv4_experts", "gauge", "Routed experts of all layers, by the memory that holds them.");
  const int64_t on_device = experts_.experts - experts_.on_host - experts_.on_disk;
  page->Value("dsv4_experts", ",place=\"device\"", static_cast<double>(on_device));
  page->Value("dsv4_experts", ",place=\"host\"", static_cast<double>(experts_.on_host));
  page->Value("dsv4_experts", ",place=\"disk\"", static_cast<double>(experts_.on_disk));
  page->Gauge("dsv4_expert_host_bytes", "Bytes of experts in host memory.", static_cast<double>(experts_.host_bytes));
  page->Counter("dsv4_expert_choices_total", "Experts chosen by tokens.", experts_.chosen);
  page->Counter("dsv4_expert_hits_total", "Chosen experts that were in GPU memory.", experts_.chosen_resident);
  page->Counter("dsv4_expert_fetched_bytes_total",
                "Bytes of experts in host memory that forward passes used, counted once per pass.",
                experts_.fetched_bytes);
  page->Counter("dsv4_expert_wait_seconds_total",
                "Seconds that prompts waited for experts to reach the GPU; decode never waits.", experts_.wait_seconds);
  page->Counter("dsv4_expert_evictions_total", "Experts moved out of GPU memory to make room for busier ones.",
                experts_.swaps);
  page->Counter("dsv4_expert_moved_bytes_total", "Bytes copied for such moves while steps ran, in both directions.",
                experts_.moved_bytes);
  page->Counter("dsv4_expert_cpu_total", "Experts in host memory computed by the CPU, counted once per pass.",
                experts_.cpu_experts);
  page->Counter("dsv4_expert_cpu_seconds_total", "Seconds that the CPU spent on experts.", experts_.cpu_seconds);
  page->Counter("dsv4_expert_disk_bytes_total", "Bytes of experts that forward passes read from the model files.",
                experts_.disk_bytes);
  page->Counter("dsv4_expert_disk_seconds_total",
                "Seconds that forward passes waited for experts from the model files.", experts_.disk_seconds);
}

void Metrics::RenderServer(const Gauges& g, MetricsPage* page) const {
  page->Gauge("dsv4_max_gap_seconds", "Limit for the seconds between two tokens of a sequence (0: no limit).",
              g.max_gap_s);
  page->Counter("dsv4_gaps_over_bound_total", "Gaps between two tokens that exceeded dsv4_max_gap_seconds.",
                gaps_over_bound_);
  page->Gauge("dsv4_admission_limit", "Sequences that may run within dsv4_max_gap_seconds, by measured step times.",
              g.admission_limit);
  page->Counters("dsv4_device_failures_total", "Device failures, by the rank that caused them.", "rank",
                 device_failures_);
  page->Counter("dsv4_device_restarts_total",
                "Number of times that all devices were reopened and the model was loaded again.", device_restarts_);
  page->Gauge("dsv4_draining", "1 while the server finishes its requests and refuses new ones.",
              g.draining ? 1.0 : 0.0);
  page->Counters("dsv4_rejected_total", "Requests refused before they entered the queue, by reason.", "reason",
                 rejections_);
  page->Gauge("dsv4_connections", "Open connections.", g.connections);
  page->Gauge("dsv4_body_bytes", "Bytes of memory held for request bodies.", g.body_bytes);
  page->Counter("dsv4_log_lines_dropped_total", "Log lines dropped because their reader was too slow.",
                g.log_lines_dropped);
  page->Counters("dsv4_spans_total", "Trace spans, by result.", "result",
                 {{"sent", g.spans_sent}, {"dropped", g.spans_dropped}});
  page->Head("dsv4_http_requests_total", "counter", "HTTP requests, by route and status.");
  for (const auto& [key, count] : http_) {
    page->Value(
        "dsv4_http_requests_total",
        "," + MetricsPage::Label("route", key.first) + "," + MetricsPage::Label("status", std::to_string(key.second)),
        static_cast<double>(count));
  }
  const BuildInfo build = GetBuildInfo();
  page->Head("dsv4_build_info", "gauge", "Version, commit and compiler of the program.");
  page->Value("dsv4_build_info",
              "," + MetricsPage::Label("version", build.version) + "," + MetricsPage::Label("commit", build.commit) +
                  "," + MetricsPage::Label("compiler", build.compiler),
              1);
}

}  // namespace dsv4::server
