// A scheduler with an engine whose faults can be requested, and clients that record what they receive.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/fake_engine.h"
#include "server/nano_tokenizer.h"
#include "server/schedule/scheduler.h"

namespace dsv4::server {

using Ids = std::vector<TokenId>;

// Everything that the client of one job has received.
struct Client {
  std::shared_ptr<Job> job = std::make_shared<Job>();
  std::vector<Ids> tokens;
  std::vector<FinishReason> finish;
  std::vector<TokenCounts> counts;
  Status error;
  size_t open = 0;
  int place = 0;  // the order in which all clients ended
};

class SchedulerTest : public ::testing::Test {
 protected:
  ~SchedulerTest() override {
    scheduler_.reset();  // before the objects that its thread uses
  }

  void Start(SchedulerOptions options = {}) {
    if (options.kv_budget_bytes == 0) options.kv_budget_bytes = int64_t{1} << 40;
    options.kv_fixed_bytes = kFakeFixedBytes;
    options.kv_bytes_per_token = kFakeTokenBytes;
    scheduler_.emplace(engine_, NanoTokenizer(), options, metrics_, [this](std::function<void()> call) {
      if (before_output_) before_output_();
      const std::lock_guard lock(mutex_);
      call();
      changed_.notify_all();
    });
  }

  std::shared_ptr<Client> Make(std::vector<Ids> prompts, int64_t max_tokens, GenerationParams params = {}) {
    auto client = std::make_shared<Client>();
    params.sampling.temperature = 0;
    const auto shared = std::make_shared<GenerationParams>(std::move(params));
    for (Ids& prompt : prompts) {
      client->job->sequences.push_back(
          {.prompt = std::make_shared<const Ids>(std::move(prompt)), .params = shared, .max_tokens = max_tokens});
    }
    const size_t n = prompts.size();
    client->tokens.resize(n);
    client->finish.resize(n, FinishReason::kNone);
    client->counts.resize(n);
    client->open = n;
    client->job->on_output = [this, c = client.get()](std::vector<StepOutput>& outputs) {
      for (const StepOutput& o : outputs) {
        const auto i = static_cast<size_t>(o.index);
        for (const OutputToken& token : o.tokens) c->tokens[i].push_back(token.id);
        c->counts[i] = o.counts;
        if (o.finish == FinishReason::kNone) continue;
        c->finish[i] = o.finish;
        if (!o.error.ok()) c->error = o.error;
        if (--c->open == 0) c->place = ++ended_;
      }
    };
    return client;
  }
  std::shared_ptr<Client> Submit(std::vector<Ids> prompts, int64_t max_tokens, GenerationParams params = {}) {
    auto client = Make(std::move(prompts), max_tokens, std::move(params));
    const Status status = scheduler_->Submit(client->job);
    EXPECT_TRUE(status.ok()) << status.message();
    return client;
  }
  template <typename Condition>
  void WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), condition));
  }
  void Wait(const std::shared_ptr<Client>& client) {
    WaitFor([&] { return client->open == 0; });
  }
  // The value of the first series whose labels end with `labels`.
  double Metric(const std::string& name, const std::string& labels = "") {
    Gauges gauges;
    scheduler_->Fill(&gauges);
    const std::string page = metrics_.Render(gauges);
    size_t at = page.find("\n" + name + "{");
    if (!labels.empty()) at = page.find("\n" + name + "{model_name=\"fake\",engine=\"0\"," + labels + "}");
    return at == std::string::npos ? -1 : std::stod(page.substr(page.find("} ", at) + 2));
  }
  // Prompt tokens that the engine has processed.
  double NumRead() { return Metric("vllm:prompt_tokens_by_source_total", "source=\"local_compute\""); }
  void WaitIdle() {
    for (int i = 0; i < 100000 && !scheduler_->idle(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(scheduler_->idle());
  }

  static Ids Counting(TokenId first, size_t n) {
    Ids ids(n);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }

  FakeEngine engine_{NanoTokenizer().vocab_size()};
  Metrics metrics_{"fake"};
  std::mutex mutex_;
  std::condition_variable changed_;
  int ended_ = 0;
  std::function<void()> before_output_;  // on the scheduler's thread; set before Start
  std::optional<Scheduler> scheduler_;
};

}  // namespace dsv4::server
