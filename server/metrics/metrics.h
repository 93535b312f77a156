// Counters in Prometheus' text format. They use vLLM's names if the meaning is the same.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dsv4/experts.h"
#include "dsv4/speculation.h"
#include "server/metrics/step_clock.h"

namespace dsv4::server {

class MetricsPage;

inline constexpr int64_t kKvPageTokens = 256;  // KV memory grows by this many tokens: vLLM calls it a block

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}
  void Add(double value);
  void Render(const std::string& name, const std::string& help, const std::string& labels, std::string* out) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Current values, read when the metrics page is requested.
struct Gauges {
  int64_t running = 0, waiting = 0;
  int64_t kv_used_bytes = 0, kv_kept_bytes = 0, kv_budget_bytes = 0;
  int64_t cuts_in_memory = 0, cuts_on_disk = 0, kv_disk_bytes = 0;  // of the prefix cache
  int64_t kv_budget_pages = 0;
  bool prefix_cache = false, draining = false;
  int64_t connections = 0, body_bytes = 0, log_lines_dropped = 0;
  uint64_t spans_sent = 0, spans_dropped = 0;
  double max_gap_s = 0;
  int64_t admission_limit = 0;
};

class Metrics {
 public:
  explicit Metrics(std::string model_name, int num_ranks = 1);

  struct Step {
    int64_t prompt_tokens = 0, generated_tokens = 0;
    int64_t drafted_tokens = 0;  // part of generated_tokens: accepted draft tokens
    DraftCounts drafts = {};     // totals so far; empty: unchanged
    std::vector<double> first_token_s, token_gaps_s;
    double decode_s = 0;      // of a step without prompt tokens
    WorkSeconds work_s = {};  // of the model's passes and of the host
    int64_t gaps_over_bound = 0;
  };
  void AddStep(const Step& step);

  struct Request {
    const char* reason;  // stop, length, tool_calls, abort, error
    int64_t prompt_tokens, generated_tokens;
    double queue_s, prefill_s, decode_s, total_s;
  };
  void AddRequest(const Request& request);

  void AddPreemption();
  // `what`: the place of a hit, or the reason for a miss.
  void AddPrefixLookup(int64_t prompt_tokens, int64_t hit_tokens, const char* what);
  void AddEviction();
  void AddKvDisk(const char* event);  // written, restored, removed, refused, foreign, failed
  void AddRejection(const char* reason);
  void AddDeviceFailure(const std::string& what);  // the line of Engine::health
  void AddDeviceRestart();
  void SetExperts(const ExpertUse& use);
  void AddHttp(const std::string& route, int status);

  // Totals so far.
  struct Totals {
    uint64_t prompt_tokens = 0, generated_tokens = 0, prefix_queries = 0, prefix_hits = 0;
  };
  Totals totals() const;

  std::string Render(const Gauges& gauges) const;

 private:
  void RenderCacheConfig(const Gauges& g, MetricsPage* page) const;
  void RenderDrafts(MetricsPage* page) const;
  void RenderHistograms(MetricsPage* page) const;
  void RenderPrefixCache(const Gauges& g, MetricsPage* page) const;
  void RenderExperts(MetricsPage* page) const;
  void RenderWork(MetricsPage* page) const;
  void RenderServer(const Gauges& g, MetricsPage* page) const;

  std::string model_label_;
  mutable std::mutex mutex_;
  uint64_t prompt_tokens_ = 0, generation_tokens_ = 0, preemptions_ = 0, prefix_queries_ = 0, prefix_hits_ = 0,
           evictions_ = 0, gaps_over_bound_ = 0, device_restarts_ = 0;
  DraftCounts drafts_;
  std::map<std::string, uint64_t> success_, hits_, misses_, kv_disk_, rejections_, device_failures_;
  std::map<std::pair<std::string, int>, uint64_t> http_;
  ExpertUse experts_;
  WorkSeconds work_s_ = {};
  Histogram first_token_, token_gap_, decode_step_, pass_, host_, mean_gap_, total_, queue_, inference_, prefill_,
      decode_, step_tokens_, request_prompt_, request_generated_;
};

}  // namespace dsv4::server
