#include "dsv4/service.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "server/fake_engine.h"
#include "server/nano_tokenizer.h"

namespace dsv4::server {
namespace {

// Everything that the requests of a service received.
class Inbox {
 public:
  EventFn Fn() {
    return [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      Mail& mail = mail_[event.request];
      EXPECT_EQ(mail.last, 0) << "an event after the last one";
      mail.text += event.text;
      for (const SampledToken& token : event.tokens) mail.tokens.push_back(token);
      for (const OutputDelta& delta : event.deltas) mail.deltas.push_back(delta);
      if (event.finish == FinishReason::kNone) return;
      ++mail.last;
      mail.finish = event;
      changed_.notify_all();
    };
  }
  struct Mail {
    std::string text;
    std::vector<SampledToken> tokens;
    std::vector<OutputDelta> deltas;
    int last = 0;
    Event finish;
    std::string Of(OutputDelta::Kind kind) const {
      std::string joined;
      for (const OutputDelta& d : deltas) joined += d.kind == kind ? d.text : "";
      return joined;
    }
  };
  Mail Wait(uint64_t request) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] { return mail_[request].last > 0; }));
    return mail_[request];
  }
  Mail Wait(const Result<uint64_t>& request) {
    EXPECT_TRUE(request.ok()) << request.status().message();
    return request.ok() ? Wait(*request) : Mail();
  }
  std::map<uint64_t, Mail> all() {
    const std::lock_guard lock(mutex_);
    return mail_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Mail> mail_;
};

std::vector<TokenId> Rising(TokenId first, size_t n) {
  std::vector<TokenId> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class ServiceTest : public ::testing::Test {
 protected:
  void Start(ServiceOptions options = {}) {
    if (options.kv_budget_bytes == 0) options.kv_budget_bytes = int64_t{1} << 40;
    auto made = Service::Create(engine_, NanoTokenizer(), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    service_ = std::move(*made);
  }
  static Request Greedy(std::vector<TokenId> prompt, int64_t max_tokens) {
    return {.prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_tokens = max_tokens};
  }
  Result<uint64_t> Submit(Request request) { return service_->Submit(std::move(request), inbox_.Fn()); }
  // The engine writes this text after any prompt that ends with token 500, then EOS.
  void Script(const std::string& text) {
    const std::vector<TokenId> ids = NanoTokenizer().Encode(text);
    engine_.next = [ids](const Session& session) {
      const std::vector<TokenId>& all = session.tokens();
      const auto start = std::find(all.rbegin(), all.rend(), 500);
      const auto written = static_cast<size_t>(start - all.rbegin());
      return written < ids.size() ? ids[written] : 1;
    };
  }

  FakeEngine engine_{NanoTokenizer().vocab_size()};
  Inbox inbox_;
  std::unique_ptr<Service> service_;  // last: its threads end first
};

TEST_F(ServiceTest, AThousandRequestsOfEightThreadsEachGetOneLastEvent) {
  Start({.max_waiting = 2000});
  std::atomic<int> accepted = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &accepted] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<uint64_t> mine;
      for (int i = 0; i < 125; ++i) {
        const auto id = Submit(
            Greedy(Rising(200 + static_cast<TokenId>(random() % 50), 1 + random() % 40), 1 + random() % 30));
        ASSERT_TRUE(id.ok()) << id.status().message();
        ++accepted;
        mine.push_back(*id);
        if (random() % 3 == 0) (void)service_->Cancel(mine[random() % mine.size()]);
        if (random() % 7 == 0) service_->Pause(*id, true), service_->Pause(*id, false);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accepted, 1000);
  EXPECT_TRUE(service_->Drain());
  const auto all = inbox_.all();
  EXPECT_EQ(all.size(), 1000u);
  int cancelled = 0;
  for (const auto& [id, mail] : all) {
    EXPECT_EQ(mail.last, 1);
    cancelled += mail.finish.finish == FinishReason::kCancelled ? 1 : 0;
    EXPECT_NE(mail.finish.finish, FinishReason::kError) << mail.finish.error.message();
    EXPECT_EQ(mail.finish.error.code(),
              mail.finish.finish == FinishReason::kCancelled ? StatusCode::kCancelled : StatusCode::kOk);
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(service_->Stats().open, 0);
}

TEST_F(ServiceTest, StopEndsOpenRequestsBeforeItReturns) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  Start({.max_running = 4});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 20; ++i) {
    const auto id = Submit(Greedy(Rising(200, 10), 100000));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  service_->Stop();
  const auto all = inbox_.all();
  for (const uint64_t id : ids) {
    ASSERT_EQ(all.count(id), 1u);
    EXPECT_EQ(all.at(id).last, 1);
    EXPECT_EQ(all.at(id).finish.finish, FinishReason::kError);
    EXPECT_EQ(all.at(id).finish.error.code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Submit(Greedy({200}, 1)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(service_->Cancel(ids[0]).code(), StatusCode::kNotFound);
  service_->Stop();
  EXPECT_TRUE(service_->Drain());
}

TEST_F(ServiceTest, RequestsThatComeWhileItStopsEndToo) {
  for (int round = 0; round < 20; ++round) {
    Start();
    std::atomic<int> accepted = 0;
    Inbox inbox;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          Request request = Greedy(Rising(200, 5), 1000);
          if (i % 10 == 0) request.regex = "[a-z]{" + std::to_string(i + 1) + "}";
          accepted += service_->Submit(std::move(request), inbox.Fn()).ok() ? 1 : 0;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    service_->Stop();
    for (std::thread& thread : threads) thread.join();
    const auto all = inbox.all();
    EXPECT_EQ(static_cast<int>(all.size()), accepted);
    for (const auto& [id, mail] : all) EXPECT_EQ(mail.last, 1);
  }
}

TEST_F(ServiceTest, ADeviceThatFailsEndsRequestsAndIsOpenedAgain) {
  std::vector<std::string> notices;
  std::mutex mutex;
  Start({.on_notice = [&](std::string_view event, const std::string&) {
    const std::lock_guard lock(mutex);
    notices.emplace_back(event);
  }});
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  const auto id = Submit(Greedy(Rising(200, 10), 100000));
  engine_.broken = true;
  const Inbox::Mail mail = inbox_.Wait(id);
  EXPECT_EQ(mail.finish.finish, FinishReason::kError);
  EXPECT_EQ(mail.finish.error.message(), "the fake device failed");
  for (int i = 0; i < 10000 && service_->Stats().device_failed; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(inbox_.Wait(Submit(Greedy({200}, 3))).tokens.size(), 3u);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(notices, (std::vector<std::string>{"device-failed", "device-restarted"}));
}

TEST_F(ServiceTest, ADeviceThatIsGoneRefusesRequests) {
  Start({.restart_device = false});
  engine_.broken = true;
  EXPECT_EQ(inbox_.Wait(Submit(Greedy({200}, 3))).finish.error.message(), "the fake device failed");
  const auto later = Submit(Greedy({200}, 3));
  EXPECT_EQ(later.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(later.status().message().find("the fake device failed"), std::string::npos);
}

TEST_F(ServiceTest, CancelInTheQueueInTheBatchAndAfterTheEnd) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  Start({.max_running = 1});
  const auto runs = Submit(Greedy({200}, 100000)), waits = Submit(Greedy({201}, 5)), last = Submit(Greedy({202}, 5));
  ASSERT_TRUE(service_->Cancel(*waits).ok());
  EXPECT_EQ(inbox_.Wait(waits).finish.finish, FinishReason::kCancelled);
  EXPECT_TRUE(inbox_.Wait(waits).tokens.empty());
  ASSERT_TRUE(service_->Cancel(*runs).ok());
  EXPECT_EQ(inbox_.Wait(runs).finish.finish, FinishReason::kCancelled);
  EXPECT_EQ(inbox_.Wait(last).finish.finish, FinishReason::kLength);
  EXPECT_TRUE(service_->Drain());
  EXPECT_EQ(service_->Cancel(*last).code(), StatusCode::kNotFound);
  EXPECT_EQ(service_->Cancel(12345).code(), StatusCode::kNotFound);
}

TEST_F(ServiceTest, CallbacksMaySubmitAndStop) {
  Start();
  std::atomic<int> ended = 0;
  std::function<void(const Event&)> again = [&](const Event& event) {
    if (event.finish == FinishReason::kNone) return;
    if (++ended < 10) {
      EXPECT_TRUE(service_->Submit(Greedy({200}, 2), again).ok());
    } else {
      EXPECT_FALSE(service_->Drain());  // at once: this request is open
      service_->Stop();
    }
  };
  ASSERT_TRUE(service_->Submit(Greedy({200}, 2), again).ok());
  for (int i = 0; i < 10000 && ended < 10; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, 10);
  service_->Stop();
}

TEST_F(ServiceTest, DrainWaitsForAtMostItsTime) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  Start();
  const auto id = Submit(Greedy({200}, 300));
  EXPECT_FALSE(service_->Drain(0.01));
  EXPECT_TRUE(service_->Stats().draining);
  EXPECT_EQ(Submit(Greedy({200}, 1)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(service_->Drain(60));
  EXPECT_EQ(inbox_.Wait(id).finish.finish, FinishReason::kLength);
}

TEST_F(ServiceTest, APausedRequestTakesNoSteps) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  Start();
  const auto id = Submit(Greedy({200}, 200));
  service_->Pause(*id, true);
  EXPECT_FALSE(service_->Drain(0.8));
  service_->Pause(*id, false);
  EXPECT_EQ(inbox_.Wait(id).tokens.size(), 200u);
}

TEST_F(ServiceTest, StopStringsAndTheirEnd) {
  Script("one two three four");
  Start();
  const auto id = Submit({.prompt = {500}, .sampling = {.temperature = 0}, .stops = {" three", "zzz"}});
  const Inbox::Mail mail = inbox_.Wait(id);
  EXPECT_EQ(mail.text, "one two");
  EXPECT_EQ(mail.finish.finish, FinishReason::kStop);
  EXPECT_EQ(mail.finish.matched_stop, " three");
  EXPECT_EQ(inbox_.Wait(Submit({.prompt = {500}, .sampling = {.temperature = 0}})).finish.end_id, 1);
}

TEST_F(ServiceTest, ChatIsSplitIntoReasoningContentAndCalls) {
  Script(
      "I think</think>Look:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter name=\"what\" "
      "string=\"true\">a key</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  Start();
  const auto id = Submit({.prompt = {500}, .sampling = {.temperature = 0}, .chat = true, .thinking = true});
  const Inbox::Mail mail = inbox_.Wait(id);
  EXPECT_EQ(mail.Of(OutputDelta::Kind::kReasoning), "I think");
  EXPECT_EQ(mail.Of(OutputDelta::Kind::kContent), "Look:");
  EXPECT_EQ(mail.Of(OutputDelta::Kind::kToolCallBegin), "find");
  EXPECT_EQ(mail.Of(OutputDelta::Kind::kToolCallArguments), "{\"what\": \"a key\"}");
  EXPECT_EQ(mail.finish.finish, FinishReason::kToolCalls);
  EXPECT_GT(mail.finish.counts.reasoning, 0);
  EXPECT_TRUE(mail.text.empty());
}

TEST_F(ServiceTest, ThePrefixCacheServesALaterRequest) {
  Start();
  inbox_.Wait(Submit(Greedy(Rising(200, 300), 4)));
  const Inbox::Mail second = inbox_.Wait(Submit(Greedy(Rising(200, 300), 4)));
  EXPECT_EQ(second.finish.counts.cached, 299);
  Request other = Greedy(Rising(200, 300), 4);
  other.tenant = "another";
  EXPECT_EQ(inbox_.Wait(Submit(std::move(other))).finish.counts.cached, 0);
  EXPECT_GT(service_->Stats().prefix_hits, 0u);
}

TEST_F(ServiceTest, RefusesRequestsThatCannotWork) {
  Start();
  const auto refused = [&](Request request, const std::string& named) {
    const auto id = Submit(std::move(request));
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument) << named;
    EXPECT_NE(id.status().message().find(named), std::string::npos) << id.status().message();
  };
  refused({}, "prompt");
  refused({.prompt = {5, -1}}, "prompt[1]");
  refused({.prompt = {1 << 29}}, "prompt[0]");
  refused({.prompt = Rising(200, 1), .sampling = {.temperature = -1}}, "temperature");
  refused({.prompt = {200}, .max_tokens = -2}, "max_tokens");
  refused({.prompt = {200}, .min_tokens = -1}, "min_tokens");
  refused({.prompt = {200}, .stop_ids = {-5}}, "stop_ids[0]");
  refused({.prompt = {200}, .stops = {""}}, "stops");
  refused({.prompt = {200}, .stops = {std::string(20000, 'x')}}, "stops");
  refused({.prompt = {200}, .prompt_logprobs = 1 << 30}, "prompt_logprobs");
  refused({.prompt = {200}, .thinking = true}, "chat");
  refused({.prompt = {200}, .chat = true, .tools = {"{\"nam\": 1}"}}, "tools[0]");
  refused({.prompt = {200}, .chat = true, .tools = {"{"}}, "JSON");
  refused({.prompt = {200}, .json_schema = "{", .regex = ""}, "JSON");
  refused({.prompt = {200}, .json_schema = "{}", .regex = "a"}, "regex");
  refused({.prompt = {200}, .timeout_s = -1}, "timeout_s");
  refused({.prompt = {200, 201}, .first_output = 2}, "first_output");
  EXPECT_EQ(Submit({.prompt = {200, 201}, .regex = "a", .first_output = 1}).status().code(), StatusCode::kUnsupported);
  refused({.prompt = std::vector<TokenId>(200000, 200)}, "200000");
  EXPECT_EQ(service_->Stats().open, 0);
}

TEST_F(ServiceTest, ABadPatternIsTheErrorOfTheLastEvent) {
  Start();
  const Inbox::Mail mail = inbox_.Wait(Submit({.prompt = {200}, .regex = "(["}));
  EXPECT_EQ(mail.finish.finish, FinishReason::kError);
  EXPECT_EQ(mail.finish.error.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(mail.finish.error.message().find("regex"), std::string::npos);
}

TEST_F(ServiceTest, ARequestThatTimesOutEnds) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  Start();
  const Inbox::Mail mail = inbox_.Wait(Submit({.prompt = {200}, .max_tokens = 50000, .timeout_s = 0.05}));
  EXPECT_EQ(mail.finish.finish, FinishReason::kError);
  EXPECT_EQ(mail.finish.error.code(), StatusCode::kCancelled);
}

TEST_F(ServiceTest, ReadsTheBodiesOfTheRoutes) {
  Script("yes");
  Start({.default_thinking = false});
  const auto submit = [&](const std::string& body) { return service_->SubmitJson(body, inbox_.Fn()); };
  const Inbox::Mail text = inbox_.Wait(submit(R"({"prompt": [500], "temperature": 0, "max_tokens": 8})"));
  EXPECT_EQ(text.text, "yes");
  Script("yes");
  const Inbox::Mail chat = inbox_.Wait(
      submit(R"({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4})"));
  EXPECT_GT(chat.finish.counts.prompt, 2);
  EXPECT_TRUE(chat.text.empty());
  for (const char* body : {"", "{", "[]", "{}", R"({"prompt": "a", "n": 2})", R"({"prompt": ["a", "b"]})",
                           R"({"messages": []})", R"({"prompt": "a", "temperature": "hot"})"}) {
    EXPECT_EQ(submit(body).status().code(), StatusCode::kInvalidArgument) << body;
  }
}

// ---- With the bundled model

class NanoServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Engine::Load({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .num_threads = 1});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    engine_ = std::move(*loaded);
    auto made = Service::Create(*engine_, NanoTokenizer(),
                                {.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano"});
    ASSERT_TRUE(made.ok()) << made.status().message();
    service_ = std::move(*made);
  }

  std::unique_ptr<Engine> engine_;
  Inbox inbox_;
  std::unique_ptr<Service> service_;
};

std::vector<SampledToken> Alone(Engine& engine, const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                int max_tokens) {
  auto session = engine.NewSession().value();
  auto sampler = Sampler::Create(sampling, engine.info().vocab_size).value();
  sampler->AddPrompt(prompt);
  std::vector<float> logits;
  EXPECT_TRUE(session->Append(prompt, LogitRows::kLast, &logits).ok());
  std::vector<SampledToken> drawn;
  const auto& eos = engine.info().eos_token_ids;
  while (static_cast<int>(drawn.size()) < max_tokens) {
    SampledToken token = *sampler->Sample(logits);
    if (std::find(eos.begin(), eos.end(), token.id) != eos.end()) break;
    drawn.push_back(token);
    EXPECT_TRUE(session->Append({&token.id, 1}, LogitRows::kLast, &logits).ok());
  }
  return drawn;
}

TEST_F(NanoServiceTest, TheBitsOfEachRequestAreThoseOfASessionAlone) {
  const char* prompts[] = {"In the beginning",    "The king said unto", "1 + 2 =", "And it came to pass that the", "O",
                           "In the beginning God"};
  std::vector<std::pair<uint64_t, Request>> sent;
  for (size_t i = 0; i < std::size(prompts); ++i) {
    Request request{.prompt = NanoTokenizer().Encode(prompts[i]),
                    .sampling = {.temperature = 0.8f, .repeat_penalty = 1.1f, .seed = 7 + i, .top_logprobs = 2},
                    .max_tokens = 30};
    const auto id = service_->Submit(request, inbox_.Fn());
    ASSERT_TRUE(id.ok()) << id.status().message();
    sent.emplace_back(*id, std::move(request));
  }
  ASSERT_TRUE(service_->Drain());
  service_.reset();
  for (const auto& [id, request] : sent) {
    const Inbox::Mail mail = inbox_.Wait(id);
    const std::vector<SampledToken> alone = Alone(*engine_, request.prompt, request.sampling, 30);
    ASSERT_EQ(mail.tokens.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(mail.tokens[i].id, alone[i].id);
      EXPECT_EQ(std::memcmp(&mail.tokens[i].logprob, &alone[i].logprob, sizeof(float)), 0);
    }
  }
}

// A request continues at the end of another one: in the same places of the same draws, with the same penalties.
TEST_F(NanoServiceTest, OutputThatWasDrawnElsewhereContinues) {
  Request whole{.prompt = NanoTokenizer().Encode("And the king said"),
                .sampling = {.temperature = 0.9f, .frequency_penalty = 0.5f, .seed = 11},
                .max_tokens = 24};
  const Inbox::Mail all = inbox_.Wait(service_->Submit(whole, inbox_.Fn()));
  ASSERT_EQ(all.tokens.size(), 24u);
  Request rest = whole;
  for (size_t i = 0; i < 10; ++i) rest.prompt.push_back(all.tokens[i].id);
  rest.first_output = 10;
  rest.max_tokens = 14;
  const Inbox::Mail later = inbox_.Wait(service_->Submit(rest, inbox_.Fn()));
  ASSERT_EQ(later.tokens.size(), 14u);
  for (size_t i = 0; i < 14; ++i) EXPECT_EQ(later.tokens[i].id, all.tokens[10 + i].id) << i;
  EXPECT_TRUE(all.text.ends_with(later.text));

  // A stop string that began in what was drawn elsewhere.
  ASSERT_GT(all.text.size(), later.text.size());
  rest.stops = {all.text.substr(all.text.size() - later.text.size() - 2, 5)};
  const Inbox::Mail stopped = inbox_.Wait(service_->Submit(rest, inbox_.Fn()));
  EXPECT_EQ(stopped.finish.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.finish.matched_stop, rest.stops[0]);
  EXPECT_EQ(stopped.text, "");
}

TEST_F(NanoServiceTest, FormsHold) {
  const auto digits = service_->Submit({.prompt = NanoTokenizer().Encode("Number:"), .regex = "[0-9]{5}"}, inbox_.Fn());
  const auto object = service_->Submit(
      {.prompt = NanoTokenizer().Encode("JSON:"),
       .json_schema = R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})"},
      inbox_.Fn());
  const std::string text = inbox_.Wait(digits).text;
  EXPECT_EQ(text.size(), 5u);
  EXPECT_EQ(text.find_first_not_of("0123456789"), std::string::npos) << text;
  const std::string json = inbox_.Wait(object).text;
  EXPECT_TRUE(json.find("\"a\"") != std::string::npos && json.back() == '}') << json;
}

TEST(ServiceOptionsTest, ABudgetForNothingIsRefused) {
  FakeEngine engine(NanoTokenizer().vocab_size());
  engine.mutable_info().kv_fixed_bytes = 1000;
  EXPECT_EQ(Service::Create(engine, NanoTokenizer(), {.kv_budget_bytes = 10}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsv4::server
