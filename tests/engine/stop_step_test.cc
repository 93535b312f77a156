// Engine::SetStopped, logits in memory of the caller, and snapshots as bytes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "gtest/gtest.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<TokenId>;

Ids SomeTokens(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Ids ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(200 + random() % 1000);
  return ids;
}

class StopStepTest : public ::testing::Test {
 protected:
  void Load(EngineOptions options = {}) {
    options.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano";
    auto loaded = Engine::Load(options);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    engine_ = std::move(*loaded);
  }
  std::unique_ptr<Session> NewSession() { return engine_->NewSession().value(); }
  std::vector<float> After(Session& session, const Ids& ids) {
    std::vector<float> logits;
    const Status status = session.Append(ids, LogitRows::kLast, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  // Stops the engine `after` the beginning of `call`, and returns the time from the stop to the end of the call.
  template <typename Call>
  std::chrono::duration<double> StopDuring(std::chrono::microseconds after, const Call& call) {
    std::atomic<Clock::rep> stopped_at = 0;
    std::thread stopper([&] {
      std::this_thread::sleep_for(after);
      stopped_at = Clock::now().time_since_epoch().count();
      engine_->SetStopped(true);
    });
    call();
    const auto end = Clock::now();
    stopper.join();
    engine_->SetStopped(false);
    return end.time_since_epoch() - Clock::duration(stopped_at);
  }

  std::unique_ptr<Engine> engine_;
};

// Whenever the stop comes, the session continues with the bits of one that was never stopped.
TEST_F(StopStepTest, AStoppedStepChangesNoSession) {
  Load({.num_threads = 1});
  const Ids first = SomeTokens(300, 1), more = SomeTokens(200, 2), last = SomeTokens(5, 3);
  const auto reference = NewSession();
  After(*reference, first);
  std::vector<float> want_more = After(*reference, more), want_last = After(*reference, last);
  const auto session = NewSession();
  After(*session, first);
  int stopped = 0;
  for (int delay = 0; delay < 12 || stopped == 0; ++delay) {
    ASSERT_LT(delay, 100);
    Status status;
    std::vector<float> logits;
    StopDuring(std::chrono::milliseconds(3 * delay), [&] {
      const StepItem item{.session = session.get(), .tokens = more, .logits = &logits, .prompt_tokens = 200};
      status = engine_->Step({&item, 1});
    });
    if (status.ok()) {  // it was faster
      EXPECT_TRUE(SameBits(logits, want_more));
      break;
    }
    ++stopped;
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_EQ(session->tokens(), first);
  }
  EXPECT_GT(stopped, 0);
  if (session->tokens() == first) {
    EXPECT_TRUE(SameBits(After(*session, more), want_more));
  }
  EXPECT_TRUE(SameBits(After(*session, last), want_last));
}

TEST_F(StopStepTest, AnEmptySessionAndSingleTokensToo) {
  Load({.num_threads = 1});
  const Ids prompt = SomeTokens(150, 1), next = {300};
  const auto reference = NewSession();
  const std::vector<float> want = After(*reference, prompt), want_next = After(*reference, next);
  const auto session = NewSession();
  StopDuring(std::chrono::milliseconds(10),
             [&] { EXPECT_EQ(session->Append(prompt, LogitRows::kNone, nullptr).code(), StatusCode::kCancelled); });
  EXPECT_TRUE(session->tokens().empty());
  EXPECT_TRUE(SameBits(After(*session, prompt), want));
  engine_->SetStopped(true);
  std::vector<float> logits;
  EXPECT_EQ(session->Append(next, LogitRows::kLast, &logits).code(), StatusCode::kCancelled);
  engine_->SetStopped(false);
  for (int i = 0; i < 30; ++i) {
    const auto one = engine_->NewSession(**session->Snapshot()).value();
    Status status;
    StopDuring(std::chrono::microseconds(100 * i), [&] { status = one->Append(next, LogitRows::kLast, &logits); });
    if (!status.ok()) {
      EXPECT_TRUE(SameBits(After(*one, next), want_next)) << i;
    }
  }
  EXPECT_TRUE(SameBits(After(*session, next), want_next));
}

TEST_F(StopStepTest, AllSessionsOfAStepAreAsBefore) {
  Load({.num_threads = 1, .prefill_chunk = 64});  // several passes: a stop comes after some of them
  const Ids long_prompt = SomeTokens(400, 1), start = SomeTokens(20, 2), short_prompt = SomeTokens(40, 3);
  const auto a = NewSession(), b = NewSession(), c = NewSession(), d = NewSession();
  After(*a, start), After(*b, start), After(*c, start), After(*d, start);
  const std::vector<float> want_a = After(*c, long_prompt), want_b = After(*d, short_prompt);
  Status status;
  StopDuring(std::chrono::milliseconds(60), [&] {
    const StepItem items[] = {
        {.session = b.get(), .tokens = short_prompt, .rows = LogitRows::kNone, .prompt_tokens = 40},
        {.session = a.get(), .tokens = long_prompt, .rows = LogitRows::kNone, .prompt_tokens = 400}};
    status = engine_->Step(items);
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(a->tokens(), start);
  EXPECT_EQ(b->tokens(), start);
  EXPECT_TRUE(SameBits(After(*a, long_prompt), want_a));
  EXPECT_TRUE(SameBits(After(*b, short_prompt), want_b));
}

TEST_F(StopStepTest, AppendAndDecodeEndWithinHalfASecond) {
  Load({});
  const auto session = NewSession();
  const Ids prompt = SomeTokens(3000, 1);
  EXPECT_LT(
      StopDuring(std::chrono::milliseconds(300),
                 [&] { EXPECT_EQ(session->Append(prompt, LogitRows::kNone, nullptr).code(), StatusCode::kCancelled); }),
      std::chrono::milliseconds(500));
  EXPECT_EQ(session->tokens().size() % 512, 0u);  // complete chunks stay
  session->Reset();
  After(*session, SomeTokens(10, 1));
  const auto sampler = Sampler::Create({.temperature = 0}, engine_->info().vocab_size).value();
  const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 300, .max_tokens = 100000};
  EXPECT_LT(StopDuring(std::chrono::milliseconds(200),
                       [&] {
                         EXPECT_EQ(engine_->Decode({&item, 1}, [](size_t, const SampledToken&) { return true; }).code(),
                                   StatusCode::kCancelled);
                       }),
            std::chrono::milliseconds(500));
}

TEST_F(StopStepTest, SeveralRanksEndBetweenPasses) {
  Load({.device = "cpu*2", .num_threads = 2});
  const auto session = NewSession(), reference = NewSession();
  const Ids prompt = SomeTokens(40, 1);
  engine_->SetStopped(true);
  EXPECT_EQ(session->Append(prompt, LogitRows::kNone, nullptr).code(), StatusCode::kCancelled);
  engine_->SetStopped(false);
  EXPECT_TRUE(SameBits(After(*session, prompt), After(*reference, prompt)));
}

TEST_F(StopStepTest, LogitsInMemoryOfTheCaller) {
  Load({.num_threads = 1});
  const auto v = static_cast<size_t>(engine_->info().vocab_size);
  const Ids prompt = SomeTokens(7, 1);
  const auto reference = NewSession(), session = NewSession(), stepped = NewSession();
  std::vector<float> want;
  ASSERT_TRUE(reference->Append(prompt, LogitRows::kAll, &want).ok());
  std::vector<float> room(7 * v + 1, -7.0f);
  for (const size_t wrong : {size_t{0}, size_t{1}, 7 * v - 1, 7 * v + 1}) {
    EXPECT_EQ(session->Append(prompt, LogitRows::kAll, std::span(room).first(wrong)).code(),
              StatusCode::kInvalidArgument);
    StepItem item{.session = stepped.get(), .tokens = prompt, .rows = LogitRows::kAll, .prompt_tokens = 7};
    item.logits_into = std::span(room).first(wrong);
    EXPECT_EQ(engine_->Step({&item, 1}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(session->tokens().empty());
  EXPECT_EQ(room[0], -7.0f);
  ASSERT_TRUE(session->Append(prompt, LogitRows::kAll, std::span(room).first(7 * v)).ok());
  EXPECT_EQ(std::memcmp(room.data(), want.data(), 7 * v * sizeof(float)), 0);
  EXPECT_EQ(room[7 * v], -7.0f);
  std::fill(room.begin(), room.end(), -7.0f);
  StepItem item{.session = stepped.get(), .tokens = prompt, .rows = LogitRows::kLast, .prompt_tokens = 7};
  item.logits_into = std::span(room).first(v);
  ASSERT_TRUE(engine_->Step({&item, 1}).ok());
  EXPECT_EQ(std::memcmp(room.data(), want.data() + 6 * v, v * sizeof(float)), 0);
  EXPECT_EQ(room[v], -7.0f);
  EXPECT_TRUE(session->Append(prompt, LogitRows::kNone, std::span<float>()).ok());
  EXPECT_EQ(session->Append(prompt, LogitRows::kNone, std::span(room)).code(), StatusCode::kInvalidArgument);
  item.logits = &want;
  EXPECT_EQ(engine_->Step({&item, 1}).code(), StatusCode::kInvalidArgument);
}

TEST_F(StopStepTest, SnapshotsAsBytes) {
  Load({.num_threads = 1});
  const auto session = NewSession();
  After(*session, SomeTokens(300, 1));
  const auto image = (*session->Snapshot())->MakeImage("a note").value();
  const std::vector<std::byte> bytes = image->bytes().value();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), image->info().file_bytes);
  std::vector<std::byte> small(bytes.size() - 1);
  EXPECT_EQ(image->CopyTo(small).code(), StatusCode::kInvalidArgument);

  const std::string path = ::testing::TempDir() + "/stop_step_test_" + std::to_string(::getpid()) + ".dsv4kv";
  ASSERT_TRUE(image->Write(path).ok());
  const auto of_file = engine_->ReadSnapshot(path).value();
  EXPECT_EQ(of_file->bytes().value(), bytes);

  const auto read = engine_->ReadSnapshot(std::span<const std::byte>(bytes));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->info().note, "a note");
  const auto again = engine_->NewSession(*engine_->LoadSnapshot(**read).value()).value();
  const Ids more = SomeTokens(3, 2);
  EXPECT_TRUE(SameBits(After(*again, more), After(*session, more)));
}

TEST_F(StopStepTest, HostileBytesAreRefused) {
  Load({.num_threads = 1});
  const auto session = NewSession();
  After(*session, SomeTokens(20, 1));
  const std::vector<std::byte> good = (*session->Snapshot())->MakeImage().value()->bytes().value();
  const auto code = [&](std::span<const std::byte> bytes) { return engine_->ReadSnapshot(bytes).status().code(); };
  EXPECT_EQ(code({}), StatusCode::kDataLoss);
  const size_t cuts[] = {1, 79, 80, 200, good.size() / 2, good.size() - 1};
  for (const size_t n : cuts) EXPECT_EQ(code(std::span(good).first(n)), StatusCode::kDataLoss) << n;
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code(longer), StatusCode::kDataLoss);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {  // one bit; in the first rounds of the header
    std::vector<std::byte> bad = good;
    const size_t at = random() % (i < 150 ? 200 : bad.size());
    bad[at] ^= std::byte(1 << random() % 8);
    const StatusCode found = code(bad);
    EXPECT_TRUE(found == StatusCode::kDataLoss || found == StatusCode::kUnsupported) << at;
  }
  for (int field = 16; field < 80; field += 8) {  // sizes that would overflow
    for (const int64_t value :
         {int64_t{-1}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
      std::vector<std::byte> bad = good;
      std::memcpy(bad.data() + field, &value, sizeof(value));
      EXPECT_EQ(code(bad), StatusCode::kDataLoss) << field;
    }
  }
  EXPECT_EQ(code(good), StatusCode::kOk);
}

}  // namespace
}  // namespace dsv4
