// Loads on a scheduler whose engine keeps simulated time, so that minutes of a GPU pass in a second. Nothing here
// reads the clock: results are the same on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/fake_engine.h"
#include "server/nano_tokenizer.h"
#include "server/schedule/scheduler.h"

namespace dsv4::server {

// Milliseconds of a pass of 8 layers of synthetic Flash on an H200, by rows or by prompt tokens. Measured.
using PassTable = std::span<const std::pair<double, double>>;
inline constexpr std::pair<double, double> kDecodeMs[] = {{0, 0},     {1, 0.748}, {2, 1.11}, {4, 1.48},  {8, 2.13},
                                                          {16, 3.71}, {32, 4.98}, {64, 7.4}, {96, 11.2}, {128, 13.1}};
inline constexpr std::pair<double, double> kLongMs[] = {
    {0, 6}, {16, 8}, {64, 12.8}, {128, 15.4}, {256, 17.3}, {512, 18.8}, {1024, 22.6}, {2048, 33.3}, {8192, 96}};
inline constexpr std::pair<double, double> kShortMs[] = {
    {0, 6}, {16, 8.6}, {64, 14.4}, {128, 17.8}, {256, 20.8}, {512, 24.3}, {1024, 32.7}, {2048, 51.}, {8192, 214}};

// Costs of the host and of the layers. A and C were fitted to loads that were measured on two H200.
struct SimulatedCosts {
  double per_sequence_ms = 6.7;  // each further sequence of a prompt pass
  double cut_ms = 45, end_ms = 45;
  double spread = 0.05;  // half normal, of a pass
  double layers = 36;
  double slow = 1;  // factor on all passes
};
inline constexpr SimulatedCosts kCostsA = {};
inline constexpr SimulatedCosts kCostsC = {.per_sequence_ms = 10, .cut_ms = 90, .end_ms = 0, .spread = 0.08};

class SimulatedEngine : public FakeEngine {
 public:
  static constexpr int64_t kVocab = 64;  // draws cost little

  explicit SimulatedEngine(const SimulatedCosts& costs) : FakeEngine(kVocab), costs_(costs) {
    mutable_info().max_context = 1 << 20;
    next = [](const dsv4::Session&) { return TokenId{7}; };
  }

  Clock::time_point Now() const { return Clock::time_point(std::chrono::nanoseconds(now_ns_)); }
  double seconds() const { return static_cast<double>(now_ns_) * 1e-9; }
  void Pass(double seconds) { now_ns_ += static_cast<int64_t>(seconds * 1e9); }

  Result<std::unique_ptr<dsv4::Session>> NewSession() override { return Make({}); }
  Result<std::unique_ptr<dsv4::Session>> NewSession(const KvSnapshot& snapshot) override {
    return Make(snapshot.tokens());
  }
  Status Step(std::span<const StepItem> items) override {
    double rows = 0;
    std::array<double, 2> tokens = {}, sequences = {};
    for (const StepItem& item : items) {
      const auto count = static_cast<double>(item.tokens.size());
      static_cast<Session*>(item.session)->writes = item.prompt_tokens == 0;
      if (item.prompt_tokens <= 128) {
        rows += count;
      } else {
        const size_t regime = item.prompt_tokens > 1024 ? 1 : 0;
        tokens[regime] += count;
        sequences[regime] += 1;
      }
    }
    double ms = rows > 0 ? costs_.layers / 8 * At(kDecodeMs, std::min(rows, 128.0)) * std::max(rows / 128, 1.0) : 0;
    for (const size_t r : {0, 1}) {
      if (sequences[r] > 0)
        ms += costs_.layers / 8 * At(r == 1 ? kLongMs : kShortMs, tokens[r]) +
              costs_.per_sequence_ms * (sequences[r] - 1);
    }
    ms *= costs_.slow * (1 + std::abs(spread_(random_)) * costs_.spread);
    Pass((ms + 1.5) / 1000);
    const Status status = FakeEngine::Step(items);
    {
      const std::lock_guard lock(mutex);
      step_tokens.clear(), step_items.clear(), all_rows.clear(), seen.clear();
    }
    if (after_step) after_step();
    return status;
  }

  std::function<void()> after_step;

 private:
  class Session : public FakeSession {
   public:
    Session(SimulatedEngine& engine, std::vector<TokenId> tokens)
        : FakeSession(engine.live_sessions, engine.bytes_, std::move(tokens), engine.before_io, engine.fingerprint),
          engine_(engine) {}
    Result<std::shared_ptr<const KvSnapshot>> Snapshot() override {
      engine_.Pass((writes ? engine_.costs_.end_ms : engine_.costs_.cut_ms) / 1000);
      return FakeSession::Snapshot();
    }
    bool writes = false;  // its last tokens were its own

   private:
    SimulatedEngine& engine_;
  };

  std::unique_ptr<dsv4::Session> Make(std::vector<TokenId> tokens) {
    return std::make_unique<Session>(*this, std::move(tokens));
  }
  static double At(PassTable table, double x) {
    size_t i = 1;
    while (i + 1 < table.size() && table[i].first < x) ++i;
    const auto [a, u] = table[i - 1];
    const auto [b, v] = table[i];
    return u + (v - u) * (x - a) / (b - a);
  }

  const SimulatedCosts costs_;
  std::atomic<int64_t> now_ns_ = 0;
  std::mt19937 random_{1};
  std::normal_distribution<double> spread_{0, 1};
};

// Seconds, unless the name says otherwise, in the middle of the load.
struct LoadResult {
  double tokens_s = 0, first_median = 0, first_p90 = 0, first_max = 0, gap_median = 0, gap_p99 = 0, gap_max = 0;
  size_t done = 0;
};

class SimulatedLoad {
 public:
  // A client sends a prompt, waits for the reply, and sends the next one.
  struct Client {
    int64_t prompt = 5120, reply = 640;  // tokens, 10 % more or less
    int64_t shared = 0;                  // first tokens of the prompt that are the same in all prompts
  };

  SimulatedLoad(const SimulatedCosts& costs, SchedulerOptions options) : engine_(costs) {
    options.kv_budget_bytes = int64_t{1} << 40;
    options.kv_fixed_bytes = kFakeFixedBytes;
    options.kv_bytes_per_token = kFakeTokenBytes;
    options.now = [this] { return engine_.Now(); };
    engine_.after_step = [this] { AfterStep(); };
    engine_.before_step = [this] {
      while (!open_) std::this_thread::yield();
    };
    scheduler_.emplace(engine_, NanoTokenizer(), options, metrics_, [](const std::function<void()>& call) { call(); });
  }
  ~SimulatedLoad() { scheduler_.reset(); }

  // Each client begins at once and repeats until `seconds` are over.
  LoadResult Closed(const std::vector<Client>& clients, double seconds) {
    clients_ = clients;
    repeat_ = true;
    return Run(seconds);
  }
  // All begin at once, one request each. Until the last first token.
  LoadResult Burst(const std::vector<Client>& clients) {
    clients_ = clients;
    return Run(1e6);
  }
  // Requests of `client` at random times.
  LoadResult Poisson(const Client& client, double per_second, double seconds) {
    arrivals_ = client;
    rate_ = per_second;
    next_arrival_ = 0.01;
    return Run(seconds);
  }
  double FirstToken(size_t client) const { return firsts_of_[client]; }  // of its first request; -1: none yet
  double Metric(const std::string& name) {
    Gauges gauges;
    scheduler_->Fill(&gauges);
    const std::string page = metrics_.Render(gauges);
    const size_t at = page.find("\n" + name + "{");
    return at == std::string::npos ? -1 : std::stod(page.substr(page.find("} ", at) + 2));
  }

 private:
  struct Told {
    double at, value;
  };
  struct Open {
    std::shared_ptr<Job> job;
    size_t client = 0;
    double begin = 0, last = -1;
    int64_t prompt = 0;
  };

  LoadResult Run(double seconds) {
    seconds_ = seconds;
    firsts_of_.assign(clients_.size(), -1);
    const size_t burst = repeat_ || rate_ > 0 ? 0 : clients_.size();
    Submit(kNoClient, {.prompt = 2, .reply = 1});  // the first step waits until all are there
    for (size_t i = 0; i < clients_.size(); ++i) Submit(i, clients_[i]);
    burst_ = burst;
    open_ = true;
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [this] { return over_; })) << engine_.seconds();
    return Sum(burst > 0);
  }

  void Submit(size_t client, const Client& c) {
    const auto about = [this](int64_t n) {
      const double factor = std::uniform_real_distribution<double>(0.9, 1.1)(random_);
      return std::max<int64_t>(static_cast<int64_t>(std::lround(static_cast<double>(n) * factor)), 2);
    };
    std::vector<TokenId> prompt(static_cast<size_t>(about(c.prompt)));
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<TokenId>(static_cast<int64_t>(i) < c.shared ? 20 + i % 7 : 20 + random_() % 40);
    auto open = std::make_shared<Open>();
    open->job = std::make_shared<Job>();
    open->client = client;
    open->begin = engine_.seconds();
    open->prompt = static_cast<int64_t>(prompt.size());
    auto params = std::make_shared<GenerationParams>();
    params->sampling.temperature = 0;
    params->ignore_eos = true;
    open->job->sequences.push_back({.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt)),
                                    .params = std::move(params),
                                    .max_tokens = c.reply == 1 ? 1 : about(c.reply)});
    open->job->on_output = [this, o = open.get()](std::vector<StepOutput>& outputs) {
      for (const StepOutput& output : outputs) OnOutput(*o, output);
    };
    kept_.push_back(open);
    ++num_open_;
    const Status status = scheduler_->Submit(open->job);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // On the scheduler's thread.
  void OnOutput(Open& open, const StepOutput& output) {
    const double now = engine_.seconds();
    const std::unique_lock lock(mutex_);
    if (over_) return;
    const bool counts = open.client != kNoClient;
    for (size_t i = 0; i < output.tokens.size() && counts; ++i) {
      tokens_.push_back({now, 1});
      if (open.last < 0) {
        tokens_.push_back({now, static_cast<double>(open.prompt)});
        firsts_.push_back({now, now - open.begin});
        if (open.client < firsts_of_.size() && firsts_of_[open.client] < 0) firsts_of_[open.client] = now - open.begin;
        if (burst_ > 0 && --burst_ == 0) Over();
      } else {
        gaps_.push_back({now, now - open.last});
      }
      open.last = now;
    }
    if (output.finish == FinishReason::kNone) return;
    EXPECT_TRUE(output.error.ok()) << output.error.message();
    if (counts) ++done_;
    --num_open_;
    if (over_) return;
    if (repeat_ && counts) Submit(open.client, clients_[open.client]);
    if (num_open_ > 0 || rate_ <= 0) return;
    engine_.Pass(std::max(next_arrival_ - now, 0.0) + 1e-6);  // nothing runs until the next request
    Arrive();
  }
  void AfterStep() {
    const std::unique_lock lock(mutex_);
    if (over_) return;
    Arrive();
    if (engine_.seconds() > seconds_) Over();
  }
  void Arrive() {
    while (rate_ > 0 && next_arrival_ <= engine_.seconds()) {
      next_arrival_ += std::exponential_distribution<double>(rate_)(random_);
      Submit(kNoClient - 1, arrivals_);
    }
  }
  void Over() {
    over_ = true;
    changed_.notify_all();
  }

  LoadResult Sum(bool all) const {
    const double end = engine_.seconds(), begin = all ? 0 : 0.15 * end, until = all ? end : 0.85 * end;
    const auto within = [&](const std::vector<Told>& told) {
      std::vector<double> values;
      for (const Told& t : told) {
        if (t.at >= begin && (all || t.at < until)) values.push_back(t.value);
      }
      std::sort(values.begin(), values.end());
      return values;
    };
    const auto part = [](const std::vector<double>& sorted, double p) {
      if (sorted.empty()) return 0.0;
      return sorted[std::min(static_cast<size_t>(p * static_cast<double>(sorted.size())), sorted.size() - 1)];
    };
    const auto firsts = within(firsts_), gaps = within(gaps_), tokens = within(tokens_);
    double sum = 0;
    for (const double n : tokens) sum += n;
    return {.tokens_s = sum / (until - begin),
            .first_median = part(firsts, 0.5),
            .first_p90 = part(firsts, 0.9),
            .first_max = part(firsts, 1),
            .gap_median = part(gaps, 0.5),
            .gap_p99 = part(gaps, 0.99),
            .gap_max = part(gaps, 1),
            .done = done_};
  }

  static constexpr size_t kNoClient = ~size_t{0};
  SimulatedEngine engine_;
  Metrics metrics_{"fake"};
  std::mt19937 random_{7};
  std::vector<Client> clients_;
  Client arrivals_;
  double rate_ = 0, next_arrival_ = 0, seconds_ = 0;
  bool repeat_ = false;
  size_t burst_ = 0, done_ = 0;
  int64_t num_open_ = 0;
  std::atomic<bool> open_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::vector<Told> tokens_, firsts_, gaps_;
  std::vector<double> firsts_of_;
  std::deque<std::shared_ptr<Open>> kept_;
  std::optional<Scheduler> scheduler_;  // last: its thread uses all of the above
};

}  // namespace dsv4::server
