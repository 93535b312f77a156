// The scheduler with an engine whose faults can be requested.
#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

// A model may have more ids than its tokenizer. Such an id has empty text.
TEST_F(SchedulerTest, AnIdThatTheTokenizerLacksHasNoText) {
  const auto known = static_cast<TokenId>(NanoTokenizer().vocab_size());
  engine_.set_vocab_size(known + 100);
  engine_.next = [known](const Session& s) { return s.tokens().size() % 2 == 0 ? known + 7 : 300; };
  Start();
  for (const bool chat : {false, true}) {
    GenerationParams params;
    params.chat = chat;
    params.stops = {"never"};
    params.sampling.top_logprobs = 3;
    const auto client = Make({{100, known + 3, 102}}, 8, params);
    client->job->sequences[0].text = std::make_shared<const RenderedPrompt>();
    ASSERT_TRUE(scheduler_->Submit(client->job).ok());
    Wait(client);
    EXPECT_EQ(client->finish[0], FinishReason::kLength);
    EXPECT_EQ(client->tokens[0].size(), 8u);
    EXPECT_NE(std::find(client->tokens[0].begin(), client->tokens[0].end(), known + 7), client->tokens[0].end());
    WaitIdle();
  }
}

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
  // Token 13 follows 12, so the fault comes during generation.
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

TEST_F(SchedulerTest, AStepThatFindsNoMemoryEndsWhatRunsAndTheNextGoesOn) {
  engine_.next = [](const Session& s) -> TokenId {
    if (s.tokens().front() == 200 && s.tokens().size() == 5) throw std::bad_alloc();
    return s.tokens().back() + 1;
  };
  Start();
  const auto client = Submit({{200}}, 20);
  Wait(client);
  EXPECT_EQ(client->finish[0], FinishReason::kError);
  EXPECT_EQ(client->error.code(), StatusCode::kResourceExhausted);
  WaitIdle();
  const auto next = Submit({{100}}, 5);
  Wait(next);
  EXPECT_EQ(next->tokens[0], Counting(101, 5));
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
  EXPECT_LT(shorter->place, prompt->place);  // the short prompt overtook it
  const std::lock_guard lock(engine_.mutex);
  EXPECT_LE(*std::max_element(engine_.step_tokens.begin(), engine_.step_tokens.end()), 64);
  EXPECT_EQ(stream->tokens[0], Counting(101, 3000));
}

TEST_F(SchedulerTest, ShortPromptsFillUpAStepTogether) {
  Start({.prefill_chunk = 500, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  std::vector<Ids> prompts;
  for (TokenId i = 0; i < 40; ++i) prompts.push_back(Ids(21, 200 + i));
  prompts.push_back(Ids(1001, 300));
  Wait(Submit(std::move(prompts), 1));
  WaitIdle();
  // Step 1: 25 prompts of 20 tokens; then their last tokens, 15 more prompts of 20 tokens, and their last tokens. The
  // long prompt after them follows.
  const std::lock_guard lock(engine_.mutex);
  engine_.step_tokens.resize(4);
  EXPECT_EQ(engine_.step_tokens, (std::vector<int64_t>{25 * 20, 25, 15 * 20, 15}));
}

TEST_F(SchedulerTest, AnIdleEngineWaitsForPromptsThatComeTogether) {
  Start({.gather_s = 0.3, .prefix_cache = {.enabled = false}});
  for (int round = 0; round < 2; ++round) {
    const auto a = Submit({Ids(11, 100)}, 1), b = Submit({Ids(11, 200)}, 1), c = Submit({Ids(11, 300)}, 1);
    for (const auto& client : {a, b, c}) Wait(client);
    WaitIdle();
  }
  const std::lock_guard lock(engine_.mutex);
  EXPECT_EQ(engine_.step_tokens, (std::vector<int64_t>{30, 3, 30, 3}));
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
  // Memory for two and a half of them.
  Start({.kv_budget_bytes = 2 * (kFakeFixedBytes + 510 * kFakeTokenBytes) + 2000});
  const auto client = Submit({{100}, {1000}, {2000}, {3000}}, 500);
  Wait(client);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(client->tokens[static_cast<size_t>(i)],
              Counting(client->job->sequences[static_cast<size_t>(i)].prompt->back() + 1, 500));
  }
  EXPECT_GT(Metric("vllm:num_preemptions_total"), 0);
}

// The engine's description of a row depends only on the request. It does not depend on the chunks of the prompt, on
// other sequences, on requested log-probabilities, or on a restart of the sequence.
TEST_F(SchedulerTest, RowsAreTheSameKindHoweverAPromptIsRead) {
  constexpr size_t kPrompt = 300;
  GenerationParams logprobs;
  logprobs.prompt_logprobs = 0;
  for (const int64_t chunk : {1, 7, 298, 299, 300, 4096}) {
    for (const bool cache : {true, false}) {
      for (const GenerationParams& params : {GenerationParams(), logprobs}) {
        Start({.prefill_chunk = chunk, .max_gap_s = 0, .prefix_cache = {.enabled = cache}});
        engine_.seen.clear();
        const auto client = Submit({Counting(100, kPrompt)}, 3, params);
        Wait(client);
        WaitIdle();
        const std::lock_guard lock(engine_.mutex);
        size_t read = 0;
        for (const FakeEngine::Rows& r : engine_.seen) {
          EXPECT_EQ(r.begin, read);
          read += r.count;
          EXPECT_EQ(r.prompt_tokens, r.begin < kPrompt - 1 ? kPrompt - 1 : 0)
              << "from " << r.begin << " in chunks of " << chunk;
          EXPECT_TRUE(r.begin >= kPrompt - 1 || read <= kPrompt - 1) << "the last token of a prompt is a decode row";
        }
      }
    }
  }
}

TEST_F(SchedulerTest, RowsFromTheCacheAreNotCounted) {
  Start();
  Wait(Submit({Counting(100, 200)}, 1));
  WaitIdle();
  Ids next = Counting(100, 199);
  next.insert(next.end(), {900, 901, 902, 903});
  engine_.seen.clear();
  const auto client = Submit({next}, 1);
  Wait(client);
  ASSERT_EQ(client->counts[0].cached, 199);
  const std::lock_guard lock(engine_.mutex);
  EXPECT_EQ(engine_.seen[0].prompt_tokens, 3);
  EXPECT_EQ(engine_.seen[0].count, 3);
  EXPECT_EQ(engine_.seen[1].prompt_tokens, 0);
}

// Memory for one and a half sequences. The second one restarts: its prompt rows keep their number, and its output is
// processed as decode rows.
TEST_F(SchedulerTest, ASequenceThatStartsOverHasTheSameRows) {
  Start({.prefill_chunk = 64,
         .kv_budget_bytes = 2 * kFakeFixedBytes + 900 * kFakeTokenBytes,
         .prefix_cache = {.enabled = false}});
  const auto client = Submit({Counting(100, 150), Counting(1000, 150)}, 400);
  Wait(client);
  ASSERT_GT(Metric("vllm:num_preemptions_total"), 0);
  const std::lock_guard lock(engine_.mutex);
  size_t again = 0;
  for (const FakeEngine::Rows& r : engine_.seen) {
    EXPECT_EQ(r.prompt_tokens, r.begin < 149 ? 149 : 0) << "from " << r.begin;
    EXPECT_TRUE(r.begin >= 149 || r.begin + r.count <= 149);
    again += r.begin >= 149 && r.count > 1;
  }
  EXPECT_GT(again, 0u) << "nothing that was written was read again";
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
  EXPECT_EQ(engine_.step_tokens[steps], 3);  // the last token of a prompt counts as a decode row
  EXPECT_EQ(engine_.step_tokens[steps + 1], 1);
}

TEST_F(SchedulerTest, SeveralRepliesReadTheirPromptOnce) {
  Start();
  const auto client = Submit(std::vector<Ids>(4, Counting(100, 300)), 3);
  Wait(client);
  for (const Ids& tokens : client->tokens) EXPECT_EQ(tokens, Counting(400, 3));
  EXPECT_EQ(client->counts[0].cached, 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(client->counts[i].cached, 299);
  EXPECT_EQ(NumRead(), 299 + 4);
}

TEST_F(SchedulerTest, PromptsThatBeginAlikeReadTheBeginningOnce) {
  std::mutex gate;
  engine_.before_step = [&] { const std::lock_guard lock(gate); };
  Start({.prefill_chunk = 100});
  gate.lock();
  // Several at once: the first one makes a cached prefix where the others diverge from it.
  std::vector<std::shared_ptr<Client>> clients;
  for (TokenId i = 0; i < 5; ++i) {
    Ids prompt = Counting(100, 1000);
    for (TokenId k = 0; k < 10; ++k) prompt.push_back(3500 + 20 * i + k);
    clients.push_back(Submit({prompt}, 2));
  }
  gate.unlock();
  for (const auto& client : clients) Wait(client);
  WaitIdle();
  EXPECT_EQ(NumRead(), 1000 + 5 * 10);
  EXPECT_EQ(Metric("vllm:prefix_cache_hits_total"), 4 * 1000);
  // One after the other: the second one processes everything and makes a cached prefix where it diverges from the
  // first. The third continues from there.
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

// A tenant's prompts leave no trace in what another tenant sees, even while both are being read.
TEST_F(SchedulerTest, PromptsOfTwoTenantsShareNothing) {
  std::mutex gate;
  engine_.before_step = [&] { const std::lock_guard lock(gate); };
  Start({.prefill_chunk = 100});
  const auto submit = [&](const std::string& tenant, TokenId last) {
    Ids prompt = Counting(100, 1000);
    for (TokenId k = 0; k < 10; ++k) prompt.push_back(3500 + last + k);
    const auto client = Make({prompt}, 2);
    client->job->tenant = tenant;
    EXPECT_TRUE(scheduler_->Submit(client->job).ok());
    return client;
  };
  gate.lock();
  std::vector<std::shared_ptr<Client>> clients;
  for (const char* tenant : {"a", "b", "c", ""})
    clients.push_back(submit(tenant, 0 + 20 * static_cast<TokenId>(clients.size())));
  gate.unlock();
  for (const auto& client : clients) Wait(client);
  WaitIdle();
  EXPECT_EQ(NumRead(), 4 * 1010);
  // Nothing was cached where the tenants' prompts part, as if the others had sent nothing.
  for (const char* tenant : {"a", "b", "c", ""}) {
    const auto client = submit(tenant, 200);
    Wait(client);
    WaitIdle();
    EXPECT_EQ(client->counts[0].cached, 0) << tenant;
  }
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
  const auto part = Submit({Counting(100, 250)}, 2);  // from the cached prefixes on its path
  Wait(part);
  EXPECT_EQ(part->counts[0].cached, 200);
}

// A client sends its next turn as soon as it reads the end. The ids of that turn come from the kept reply.
TEST_F(SchedulerTest, AReplyIsKeptBeforeItsEndIsDelivered) {
  Start({.max_gap_s = 0});
  const auto kept = [&] {
    Gauges gauges;
    scheduler_->Fill(&gauges);
    return gauges.cuts_in_memory;
  };
  for (int i = 0; i < 3; ++i) {
    const auto client = Make({Counting(100 * i + 100, 5)}, 6);
    int64_t at_end = -1;
    client->job->on_output = [&, receive = client->job->on_output](std::vector<StepOutput>& outputs) {
      if (outputs.back().finish != FinishReason::kNone) at_end = kept();
      receive(outputs);
    };
    ASSERT_TRUE(scheduler_->Submit(client->job).ok());
    Wait(client);
    WaitIdle();
    EXPECT_EQ(at_end, kept());
  }
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
  EXPECT_EQ(NumRead(), 200);
  EXPECT_EQ(engine_.kv_bytes(), 0);
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

// An engine on a GPU has memory for a limited number of logits rows.
TEST_F(SchedulerTest, PromptsThatNeedAllRowsShareTheRoomForThem) {
  std::atomic<bool> open{false};
  engine_.before_step = [&] {
    while (!open) std::this_thread::yield();
  };
  Start({.prefill_chunk = 4096});
  GenerationParams params;
  params.prompt_logprobs = 0;
  std::vector<std::shared_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(Submit({Counting(100, 200)}, 1, params));
  open = true;
  for (const auto& client : clients) Wait(client);
  const std::lock_guard lock(engine_.mutex);
  EXPECT_LE(*std::max_element(engine_.all_rows.begin(), engine_.all_rows.end()), 112);
  EXPECT_EQ(std::accumulate(engine_.all_rows.begin(), engine_.all_rows.end(), int64_t{0}), 8 * 200);
}

// The first sequence ends in the step whose output arrives while the client leaves. The second one still runs.
TEST_F(SchedulerTest, WhoCancelsIsToldOfEverySequenceThatEnded) {
  const auto client = Make({Counting(200, 5), Counting(300, 5)}, 50);
  client->job->sequences[0].max_tokens = 1;
  before_output_ = [&] { client->job->cancelled = true; };
  Start();
  ASSERT_TRUE(scheduler_->Submit(client->job).ok());
  WaitIdle();
  EXPECT_EQ(client->open, 0u);
  EXPECT_EQ(client->finish[0], FinishReason::kLength);
  EXPECT_EQ(client->finish[1], FinishReason::kCancelled);
}

}  // namespace
}  // namespace dsv4::server
