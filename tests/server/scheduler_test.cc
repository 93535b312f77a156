// The scheduler over an engine that fails on request.
#include "server/scheduler.h"

#include <condition_variable>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>

#include "fake_engine.h"
#include "gtest/gtest.h"
#include "io/test_files.h"
#include "server/structured/grammar.h"

namespace dsv4::server {
namespace {

using Ids = std::vector<TokenId>;

const Tokenizer& NanoTokenizer() {
  static const auto tokenizer = [] {
    auto loaded = Tokenizer::Load(std::string(DSV4_SOURCE_DIR) + "/models/nano");
    return loaded.ok() ? std::move(*loaded) : nullptr;
  }();
  return *tokenizer;
}

// What a client of one job has received.
struct Client {
  std::shared_ptr<Job> job = std::make_shared<Job>();
  std::vector<Ids> tokens;
  std::vector<FinishReason> finish;
  std::vector<TokenCounts> counts;
  Status error;
  size_t open = 0;
  int place = 0;  // among all clients, in the order in which they ended
};

class SchedulerTest : public ::testing::Test {
 protected:
  ~SchedulerTest() override {
    scheduler_.reset();  // before what its thread uses
  }

  void Start(SchedulerOptions options = {}) {
    if (options.kv_budget_bytes == 0) options.kv_budget_bytes = int64_t{1} << 40;
    options.kv_fixed_bytes = kFakeFixedBytes;
    options.kv_bytes_per_token = kFakeTokenBytes;
    scheduler_.emplace(engine_, NanoTokenizer(), options, metrics_, [this](std::function<void()> call) {
      const std::lock_guard lock(mutex_);
      call();
      changed_.notify_all();
    });
  }

  std::shared_ptr<Client> Make(std::vector<Ids> prompts, int64_t max_tokens, GenerationParams params = {}) {
    auto client = std::make_shared<Client>();
    params.sampling.temperature = 0;
    params.max_tokens = max_tokens;
    for (Ids& prompt : prompts) {
      client->job->sequences.push_back(
          {.prompt = std::make_shared<const Ids>(std::move(prompt)), .params = params});
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
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), condition));
  }
  void Wait(const std::shared_ptr<Client>& client) {
    WaitFor([&] { return client->open == 0; });
  }
  // The first series whose labels end like this.
  double Metric(const std::string& name, const std::string& labels = "") {
    Gauges gauges;
    scheduler_->Fill(&gauges);
    const std::string page = metrics_.Render(gauges);
    size_t at = page.find("\n" + name + "{");
    if (!labels.empty()) at = page.find("\n" + name + "{model_name=\"fake\"," + labels + "}");
    return at == std::string::npos ? -1 : std::stod(page.substr(page.find("} ", at) + 2));
  }
  void WaitIdle() {
    for (int i = 0; i < 10000 && !scheduler_->idle(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  std::optional<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, WritesAndEndsAtTheLimitAndAtEos) {
  Start();
  const auto a = Submit({{100}, {200, 300}}, 5);
  Wait(a);
  EXPECT_EQ(a->tokens, (std::vector<Ids>{Counting(101, 5), Counting(301, 5)}));
  EXPECT_EQ(a->finish[0], FinishReason::kLength);
  const auto b = Submit({{0}}, 5);  // 1 is EOS
  Wait(b);
  EXPECT_TRUE(b->tokens[0].empty());
  EXPECT_EQ(b->finish[0], FinishReason::kStop);
  EXPECT_EQ(b->counts[0].completion, 1);
  GenerationParams stop;
  stop.stop_ids = {403};
  const auto c = Submit({{400}}, 50, stop);
  Wait(c);
  EXPECT_EQ(c->tokens[0], Counting(401, 2));
}

TEST_F(SchedulerTest, AFaultEndsItsOwnSequenceOnly) {
  Start();
  const auto good = Submit({{100}}, 300);
  const auto poisoned = Submit({{200, kPoison, 201}}, 5);
  const auto nan = Submit({{500, kNanToken}}, 5);
  // 12 is followed by 13: the fault comes while tokens are generated.
  const auto late = Submit({{10}}, 20);
  Wait(poisoned);
  Wait(nan);
  Wait(late);
  Wait(good);
  EXPECT_EQ(good->tokens[0], Counting(101, 300));
  EXPECT_EQ(poisoned->finish[0], FinishReason::kError);
  EXPECT_EQ(poisoned->error.message(), "poison");
  EXPECT_EQ(nan->error.code(), StatusCode::kInternal);
  EXPECT_EQ(late->tokens[0], Counting(11, 3));
  EXPECT_EQ(late->finish[0], FinishReason::kError);
}

TEST_F(SchedulerTest, PromptsAreReadInPiecesBesideRunningStreams) {
  Start({.prefill_chunk = 64, .max_gap_s = 0});
  const auto stream = Submit({{100}}, 3000);
  WaitFor([&] { return stream->tokens[0].size() > 10; });
  const auto prompt = Submit({Ids(5000, 7)}, 1);
  const auto shorter = Submit({Ids(70, 9)}, 1);
  Wait(shorter);
  Wait(prompt);
  Wait(stream);
  EXPECT_LT(shorter->place, prompt->place);  // the short one passed it
  const std::lock_guard lock(engine_.mutex);
  EXPECT_LE(*std::max_element(engine_.step_tokens.begin(), engine_.step_tokens.end()), 64);
  EXPECT_EQ(stream->tokens[0], Counting(101, 3000));
}

TEST_F(SchedulerTest, CancellingTakesOneStep) {
  std::atomic<int> steps = 0;
  std::mutex gate;
  engine_.before_step = [&] {
    ++steps;
    const std::lock_guard lock(gate);
  };
  Start();
  gate.lock();
  const auto client = Submit({{100}}, 1000);
  while (steps == 0) std::this_thread::yield();
  scheduler_->Cancel(client->job);
  gate.unlock();
  Wait(client);
  EXPECT_EQ(client->finish[0], FinishReason::kCancelled);
  EXPECT_LE(steps, 2);
  WaitIdle();
  EXPECT_EQ(engine_.live_sessions, 0);
}

TEST_F(SchedulerTest, APausedSequenceWaitsAndItsTimeRunsOn) {
  Start();
  const auto client = Make({{100}}, 100000 - 200);
  client->job->deadline = Clock::now() + std::chrono::milliseconds(300);
  client->job->paused = true;
  ASSERT_TRUE(scheduler_->Submit(client->job).ok());
  const auto other = Submit({{200}}, 3);
  Wait(other);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(client->tokens[0].empty());
  }
  Wait(client);
  EXPECT_EQ(client->error.code(), StatusCode::kCancelled);
}

TEST_F(SchedulerTest, TheQueueIsBounded) {
  Start({.max_running = 1, .max_waiting = 2});
  const auto running = Submit({{100}}, 90000);
  WaitFor([&] { return !running->tokens[0].empty(); });
  const auto two = Submit({{200}, {300}}, 1);
  const auto refused = Make({{400}}, 1);
  EXPECT_EQ(scheduler_->Submit(refused->job).code(), StatusCode::kResourceExhausted);
  scheduler_->Cancel(running->job);
  Wait(two);
  EXPECT_TRUE(scheduler_->Submit(refused->job).ok());
  Wait(refused);
}

TEST_F(SchedulerTest, SequencesGiveWayAndComeBack) {
  // Room for two and a half of them.
  Start({.kv_budget_bytes = 2 * (kFakeFixedBytes + 510 * kFakeTokenBytes) + 2000});
  const auto client = Submit({{100}, {1000}, {2000}, {3000}}, 500);
  Wait(client);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(client->tokens[static_cast<size_t>(i)],
              Counting(client->job->sequences[static_cast<size_t>(i)].prompt->back() + 1, 500));
  }
  EXPECT_GT(Metric("vllm:num_preemptions_total"), 0);
}

TEST_F(SchedulerTest, TheMachineMayHaveLessMemoryThanTheBudget) {
  engine_.max_tokens_held = 700;
  Start();
  const auto client = Submit({{100}, {1000}, {2000}}, 400);
  Wait(client);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(client->tokens[i].size(), 400u);
  EXPECT_GT(Metric("vllm:num_preemptions_total"), 0);
  const auto too_long = Submit({Ids(800, 5)}, 1);
  Wait(too_long);
  EXPECT_EQ(too_long->error.code(), StatusCode::kResourceExhausted);
}

TEST_F(SchedulerTest, TheNextTurnReadsOnlyWhatIsNew) {
  Start();
  const auto first = Submit({Counting(100, 200)}, 50);
  Wait(first);
  WaitIdle();
  Ids next = Counting(100, 250);
  next.insert(next.end(), {900, 901, 902});
  size_t steps;
  {
    const std::lock_guard lock(engine_.mutex);
    steps = engine_.step_tokens.size();
  }
  const auto second = Submit({next}, 5);
  Wait(second);
  EXPECT_EQ(second->counts[0].cached, 249);
  EXPECT_EQ(second->tokens[0], Counting(903, 5));
  const std::lock_guard lock(engine_.mutex);
  EXPECT_EQ(engine_.step_tokens[steps], 3);  // the last token of a prompt goes with those that are written
  EXPECT_EQ(engine_.step_tokens[steps + 1], 1);
}

TEST_F(SchedulerTest, SeveralRepliesReadTheirPromptOnce) {
  Start();
  const auto client = Submit(std::vector<Ids>(4, Counting(100, 300)), 3);
  Wait(client);
  for (const Ids& tokens : client->tokens) EXPECT_EQ(tokens, Counting(400, 3));
  EXPECT_EQ(client->counts[0].cached, 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(client->counts[i].cached, 299);
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), 299 + 4);
}

TEST_F(SchedulerTest, PromptsThatBeginAlikeReadTheBeginningOnce) {
  std::mutex gate;
  engine_.before_step = [&] { const std::lock_guard lock(gate); };
  Start({.prefill_chunk = 100});
  gate.lock();
  // Several at once: the first one makes a cut where the others part from it.
  std::vector<std::shared_ptr<Client>> clients;
  for (TokenId i = 0; i < 5; ++i) {
    Ids prompt = Counting(100, 1000);
    for (TokenId k = 0; k < 10; ++k) prompt.push_back(3500 + 20 * i + k);
    clients.push_back(Submit({prompt}, 2));
  }
  gate.unlock();
  for (const auto& client : clients) Wait(client);
  WaitIdle();
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), 1000 + 5 * 10);
  EXPECT_EQ(Metric("vllm:prefix_cache_hits_total"), 4 * 1000);
  // One after the other: the second reads all and cuts where it left the first one's way, the third goes on from there.
  std::vector<int64_t> cached;
  for (TokenId i = 0; i < 3; ++i) {
    Ids prompt = Counting(2000, 500);
    for (TokenId k = 0; k < 10; ++k) prompt.push_back(3500 + 20 * i + k);
    const auto client = Submit({prompt}, 2);
    Wait(client);
    WaitIdle();
    cached.push_back(client->counts[0].cached);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 500}));
}

TEST_F(SchedulerTest, ACancelledPromptIsNotReadAgain) {
  std::atomic<int> steps = 0;
  engine_.before_step = [&] { ++steps; };
  Start({.prefill_chunk = 10, .prefix_cache = {.interval = 100}});
  const auto client = Submit({Counting(100, 3900)}, 2);
  while (steps < 50) std::this_thread::yield();
  scheduler_->Cancel(client->job);
  Wait(client);
  WaitIdle();
  const auto again = Submit({Counting(100, 3900)}, 2);
  Wait(again);
  EXPECT_GE(again->counts[0].cached, 400);
  WaitIdle();
  const auto part = Submit({Counting(100, 250)}, 2);  // from the cuts on the way
  Wait(part);
  EXPECT_EQ(part->counts[0].cached, 200);
}

TEST_F(SchedulerTest, WithoutAPrefixCacheEverythingIsRead) {
  Start({.prefix_cache = {.enabled = false}});
  for (int i = 0; i < 2; ++i) {
    const auto client = Submit(std::vector<Ids>(2, Counting(100, 50)), 3);
    Wait(client);
    EXPECT_EQ(client->counts[1].cached, 0);
    EXPECT_EQ(client->tokens[1], Counting(150, 3));
  }
  WaitIdle();
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), 200);
  EXPECT_EQ(engine_.kv_bytes(), 0);
}

class Storm : public SchedulerTest, public ::testing::WithParamInterface<bool> {};

// Prompts that share beginnings in all ways, several replies each, little memory, some cancelled: all are answered, right.
TEST_P(Storm, OfCommonBeginningsIsAnswered) {
  const dsv4::testing::TempDir folder;
  PrefixCacheOptions cache{.interval = 50};
  if (GetParam()) {
    cache.disk = folder.path();
    cache.disk_bytes = 100000;
    cache.disk_queue_bytes = 10000;
  }
  Start({.max_running = 12, .max_waiting = 10000, .prefill_chunk = 40, .max_gap_s = 0, .kv_budget_bytes = 60000,
         .prefix_cache = cache});
  uint64_t state = 1;
  const auto random = [&state](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  std::vector<std::shared_ptr<Client>> clients;
  for (int i = 0; i < 400; ++i) {
    Ids prompt = Counting(200, 1 + random(300));
    for (uint64_t k = random(3); k > 0; --k) {
      const Ids more = Counting(static_cast<TokenId>(1000 * k + random(3)), 1 + random(120));
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
    clients.push_back(Submit(std::vector<Ids>(1 + random(3), prompt), static_cast<int64_t>(1 + random(20))));
    if (random(10) == 0) scheduler_->Cancel(clients[random(clients.size())]->job);
    if (random(4) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& client : clients) {
    Wait(client);
    for (size_t s = 0; s < client->tokens.size(); ++s) {
      if (client->job->cancelled) continue;
      EXPECT_EQ(client->finish[s], FinishReason::kLength);
      EXPECT_EQ(client->tokens[s], Counting(client->job->sequences[s].prompt->back() + 1, client->tokens[s].size()));
    }
  }
  WaitIdle();
  EXPECT_EQ(engine_.live_sessions, 0);
  EXPECT_LE(engine_.kv_bytes(), 60000);
  if (GetParam()) {
    EXPECT_GT(Metric("dsv4:kv_disk_total", "event=\"restored\""), 0);
    EXPECT_EQ(Metric("dsv4:kv_disk_total", "event=\"refused\""), -1);
  }
  scheduler_->Stop();
  scheduler_.reset();
}

INSTANTIATE_TEST_SUITE_P(, Storm, ::testing::Bool(), [](const auto& p) { return p.param ? "disk" : "memory"; });

class SchedulerDisk : public SchedulerTest {
 protected:
  // Room for about 1,900 tokens; files are read and written while the gate is open.
  void StartWithDisk(int64_t queue_bytes = 1 << 20) {
    engine_.before_io = [this] {
      ++num_io_;
      while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    Start({.kv_budget_bytes = 20000, .prefix_cache = {.disk = folder_.path(), .disk_bytes = int64_t{1} << 30, .disk_queue_bytes = queue_bytes}});
  }
  ~SchedulerDisk() override {
    open_ = true;
    scheduler_.reset();  // before what its files need
  }
  void WaitForIo(int number) {
    for (int i = 0; i < 10000 && num_io_ < number; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(num_io_, number);
  }
  void WaitForSilence() {  // the thread has nothing to do
    for (int i = 0; i < 10000 && scheduler_->SecondsStuck() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(scheduler_->SecondsStuck(), 0);
  }
  void WaitForTokens(const std::shared_ptr<Client>& client, size_t more) {
    size_t wanted = 0;
    WaitFor([&] { return (wanted = client->tokens[0].size() + more) > 0; });
    WaitFor([&] { return client->tokens[0].size() >= wanted || client->open == 0; });
  }

  const dsv4::testing::TempDir folder_;
  std::atomic<bool> open_ = true;
  std::atomic<int> num_io_ = 0;
};

TEST_F(SchedulerDisk, StreamsGoOnWhileAFileIsWritten) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  open_ = false;
  const auto stream = Submit({{2000}}, 1700);  // needs nearly all of the memory
  WaitForIo(1);
  Wait(stream);
  EXPECT_EQ(stream->tokens[0], Counting(2001, 1700));
  EXPECT_EQ(Metric("dsv4:kv_disk_total", "event=\"written\""), -1);
  WaitIdle();
  // What waits to be written can be gone on from.
  const auto again = Submit({Counting(100, 300)}, 5);
  Wait(again);
  EXPECT_EQ(again->counts[0].cached, 299);
  EXPECT_EQ(again->tokens[0], Counting(400, 5));
  open_ = true;
  WaitIdle();
  scheduler_->Stop();
  EXPECT_GE(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(SchedulerDisk, ADiskThatHangsShowsInHealth) {
  StartWithDisk(/*queue_bytes=*/1);
  for (const TokenId first : {100, 600, 1100}) Wait(Submit({Counting(first, 300)}, 5));
  WaitIdle();
  WaitForSilence();
  open_ = false;
  const auto stream = Submit({{2000}}, 1700);  // needs what several files would free; one of them may wait
  for (int i = 0; i < 10000 && scheduler_->SecondsStuck() < 0.1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(scheduler_->SecondsStuck(), 0.1);
  open_ = true;
  Wait(stream);
  EXPECT_EQ(stream->tokens[0], Counting(2001, 1700));
  WaitIdle();
  WaitForSilence();
}

TEST_F(SchedulerDisk, StreamsGoOnWhileAFileIsRead) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  scheduler_.reset();  // writes it
  StartWithDisk();
  EXPECT_GE(Metric("dsv4:prefix_cuts", "place=\"disk\""), 1);
  num_io_ = 0;
  open_ = false;
  const auto stream = Submit({{2000}}, 1500);
  const auto again = Submit({Counting(100, 300)}, 5), too = Submit({Counting(100, 300)}, 3);
  WaitForIo(1);
  WaitForTokens(stream, 100);
  EXPECT_EQ(num_io_, 1);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(again->tokens[0].empty() && too->tokens[0].empty());
  }
  open_ = true;
  Wait(again);
  Wait(too);
  EXPECT_EQ(again->counts[0].cached, 299);
  EXPECT_EQ(again->tokens[0], Counting(400, 5));
  EXPECT_EQ(too->tokens[0], Counting(400, 3));
  EXPECT_EQ(Metric("dsv4:prefix_hit_total", "place=\"disk\""), 1);
  scheduler_->Cancel(stream->job);
  // Alone, a prompt that waits for its file keeps nobody busy.
  WaitIdle();
}

TEST_F(SchedulerDisk, AFileThatIsDamagedIsReadAgainFromItsPrompt) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  scheduler_.reset();
  StartWithDisk();
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) std::filesystem::resize_file(entry.path(), 3);
  const auto again = Submit({Counting(100, 300)}, 5);
  Wait(again);
  EXPECT_EQ(again->counts[0].cached, 0);
  EXPECT_EQ(again->tokens[0], Counting(400, 5));
  EXPECT_GT(Metric("dsv4:kv_disk_total", "event=\"refused\""), 0);
}

TEST_F(SchedulerDisk, AFolderThatVanishesCostsTheCacheOnly) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  std::filesystem::remove_all(folder_.path());
  const auto stream = Submit({{2000}}, 1700);
  Wait(stream);
  EXPECT_EQ(stream->tokens[0].size(), 1700u);
  for (int i = 0; i < 10000 && Metric("dsv4:kv_disk_total", "event=\"failed\"") < 1; ++i) {
    Wait(Submit({{3000}}, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(Metric("dsv4:kv_disk_total", "event=\"failed\""), 0);
}

// A text that must be "ab"s, in the midst of sequences that may say anything.
TEST_F(SchedulerTest, AGrammarHoldsItsOwnSequenceOnly) {
  struct EvenOnly : GrammarMatcher {
    explicit EvenOnly(int64_t vocab) : bits(static_cast<size_t>(vocab + 31) / 32, 0x55555555u) {}
    std::span<const uint32_t> Allowed() override { return bits; }
    bool Accept(TokenId id) override { return id % 2 == 0; }
    bool AcceptText(std::string_view) override { return true; }
    bool complete() const override { return false; }
    const std::vector<uint32_t> bits;
  };
  struct Even : Grammar {
    explicit Even(int64_t v) : vocab(v) {}
    std::unique_ptr<GrammarMatcher> NewMatcher() const override { return std::make_unique<EvenOnly>(vocab); }
    int64_t vocab;
  };
  Start();
  GenerationParams params;
  params.content_grammar = std::make_shared<Even>(NanoTokenizer().vocab_size());
  params.sampling.logit_bias = {{402, 5.0f}};  // what is left of 401, 403, ... is the first even id, but for this one
  params.sampling.top_logprobs = 1;
  auto held = Make({{400}}, 40, params);
  std::vector<OutputToken> tokens;
  const auto inner = held->job->on_output;
  held->job->on_output = [&](std::vector<StepOutput>& outputs) {
    for (const StepOutput& o : outputs) tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
    inner(outputs);
  };
  const auto free = Submit({{600}}, 40);
  ASSERT_TRUE(scheduler_->Submit(held->job).ok());
  Wait(free);
  Wait(held);
  EXPECT_EQ(free->tokens[0], Counting(601, 40));
  EXPECT_EQ(held->tokens[0], Ids(40, 402));
  for (const OutputToken& t : tokens) EXPECT_LT(t.logprob, -10);  // the model's own: it would say 401, 403
  for (const OutputToken& t : tokens) EXPECT_EQ(t.top[0].id % 2, 1);
}

TEST_F(SchedulerTest, PromptLogprobsSurviveChunks) {
  Start({.prefill_chunk = 7});
  GenerationParams params;
  params.prompt_logprobs = 1;
  auto client = Make({Counting(100, 40)}, 1, params);
  std::vector<OutputToken> prompt;
  const auto inner = client->job->on_output;
  client->job->on_output = [&](std::vector<StepOutput>& outputs) {
    for (const StepOutput& o : outputs) prompt.insert(prompt.end(), o.prompt.begin(), o.prompt.end());
    inner(outputs);
  };
  ASSERT_TRUE(scheduler_->Submit(client->job).ok());
  Wait(client);
  ASSERT_EQ(prompt.size(), 40u);
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(prompt[i].id, static_cast<TokenId>(100 + i));
    EXPECT_GT(prompt[i].logprob, -0.1f);
    EXPECT_EQ(prompt[i].top[0].id, prompt[i].id);
    EXPECT_EQ(prompt[i].top[0].logprob, prompt[i].logprob);
  }
}

TEST_F(SchedulerTest, StoppingEndsEverything) {
  Start({.max_running = 1});
  const auto client = Submit({{100}, {200}}, 90000);
  WaitFor([&] { return !client->tokens[0].empty(); });
  scheduler_->Stop();
  Wait(client);
  EXPECT_EQ(client->finish, (std::vector{FinishReason::kError, FinishReason::kError}));
  EXPECT_EQ(engine_.live_sessions, 0);
  EXPECT_EQ(scheduler_->Submit(Make({{1}}, 1)->job).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dsv4::server
