// The scheduler under memory pressure: shared prefixes in little memory, and KV that moves to disk and back.
#include <filesystem>

#include "io/test_files.h"
#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

class Storm : public SchedulerTest, public ::testing::WithParamInterface<bool> {};

// Prompts with shared prefixes of all kinds, several replies each, little memory, and some cancellations: all get the
// right replies.
TEST_P(Storm, OfCommonBeginningsIsAnswered) {
  const dsv4::test::TempDir folder;
  PrefixCacheOptions cache{.interval = 50};
  if (GetParam()) {
    cache.disk = folder.path();
    cache.disk_bytes = 100000;
    cache.disk_queue_bytes = 10000;
  }
  Start({.max_running = 12,
         .max_waiting = 10000,
         .prefill_chunk = 40,
         .max_gap_s = 0,
         .kv_budget_bytes = 60000,
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
    EXPECT_GT(Metric("dsv4_kv_disk_total", "event=\"restored\""), 0);
    EXPECT_EQ(Metric("dsv4_kv_disk_total", "event=\"refused\""), 0);
  }
  scheduler_->Stop();
  scheduler_.reset();
}

INSTANTIATE_TEST_SUITE_P(, Storm, ::testing::Bool(), [](const auto& p) { return p.param ? "disk" : "memory"; });

class SchedulerDisk : public SchedulerTest {
 protected:
  // Memory for about 1,900 tokens. Files are read and written while `open_` is set.
  void StartWithDisk(int64_t queue_bytes = 1 << 20, int64_t kv_budget_bytes = 20000) {
    engine_.before_io = [this] {
      ++num_io_;
      while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    Start({.kv_budget_bytes = kv_budget_bytes,
           .prefix_cache = {.disk = folder_.path(), .disk_bytes = int64_t{1} << 30, .disk_queue_bytes = queue_bytes}});
  }
  ~SchedulerDisk() override {
    open_ = true;
    scheduler_.reset();  // before the objects that its files use
  }
  void WaitForIo(int number) {
    for (int i = 0; i < 10000 && num_io_ < number; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(num_io_, number);
  }
  void WaitForSilence() {  // waits until the file thread has nothing to do
    for (int i = 0; i < 10000 && scheduler_->SecondsStuck() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(scheduler_->SecondsStuck(), 0);
  }
  void WaitForTokens(const std::shared_ptr<Client>& client, size_t more) {
    size_t wanted = 0;
    WaitFor([&] { return (wanted = client->tokens[0].size() + more) > 0; });
    WaitFor([&] { return client->tokens[0].size() >= wanted || client->open == 0; });
  }

  const dsv4::test::TempDir folder_;
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
  EXPECT_EQ(Metric("dsv4_kv_disk_total", "event=\"written\""), 0);
  WaitIdle();
  // A prompt can continue from a prefix that waits to be written.
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
  const auto stream = Submit({{2000}}, 1700);  // needs the memory of several files; one of them may wait
  for (int i = 0; i < 10000 && scheduler_->SecondsStuck() < 0.1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  StartWithDisk(/*queue_bytes=*/1 << 20,
                /*kv_budget_bytes=*/200000);  // large enough that the stream does not evict the loaded prefix
  EXPECT_GE(Metric("dsv4_cached_prefixes", "place=\"disk\""), 1);
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
  EXPECT_EQ(Metric("dsv4_prefix_hit_total", "place=\"disk\""), 1);
  scheduler_->Cancel(stream->job);
  // A prompt that waits for its file, and nothing else, does not keep the engine busy.
  WaitIdle();
}

TEST_F(SchedulerDisk, AFileThatIsDamagedIsReadAgainFromItsPrompt) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  scheduler_.reset();
  StartWithDisk();
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    std::filesystem::resize_file(entry.path(), 3);
  const auto again = Submit({Counting(100, 300)}, 5);
  Wait(again);
  EXPECT_EQ(again->counts[0].cached, 0);
  EXPECT_EQ(again->tokens[0], Counting(400, 5));
  EXPECT_GT(Metric("dsv4_kv_disk_total", "event=\"refused\""), 0);
}

// A sound file of other tokens in the place of a known one: the reply would continue another text.
TEST_F(SchedulerDisk, AFileThatWasExchangedIsReadAgainFromItsPrompt) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  scheduler_.reset();
  StartWithDisk();
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) paths.push_back(entry.path());
  ASSERT_GT(paths.size(), 0u);
  for (const std::string& path : paths) {
    for (const size_t size : {size_t{299}, size_t{304}})
      ASSERT_TRUE(FakeImage(Counting(1000, size), {}, engine_.fingerprint, "").Write(path).ok());
  }
  const auto again = Submit({Counting(100, 300)}, 5);
  Wait(again);
  EXPECT_EQ(again->counts[0].cached, 0);
  EXPECT_EQ(again->tokens[0], Counting(400, 5));
  EXPECT_GT(Metric("dsv4_kv_disk_total", "event=\"refused\""), 0);
}

TEST_F(SchedulerDisk, FilesOfAnotherModelOrWithoutAnOwnerAreNotUsedAndGoFirst) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  scheduler_.reset();
  // the prefix of the prompt, and the prefix of the reply
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);
  // Written as by an older server: no note that names the tenant.
  (void)FakeImage(Counting(1000, 300), {}, engine_.fingerprint, "").Write(folder_.path() + "/old.dsv4kv");
  engine_.fingerprint = "with one expert changed";
  (void)FakeImage(Counting(2000, 300), {}, engine_.fingerprint, "\x03\0\0\0").Write(folder_.path() + "/other.dsv4kv");
  (void)FakeImage(Counting(2000, 300), {}, engine_.fingerprint, "").Write(folder_.path() + "/older.dsv4kv");
  StartWithDisk();
  EXPECT_EQ(Metric("dsv4_kv_disk_total", "event=\"foreign\""), 5);
  EXPECT_EQ(Metric("dsv4_cached_prefixes", "place=\"disk\""), 0);
  for (const TokenId first : {100, 1000, 2000}) {
    const auto again = Submit({Counting(first, 300)}, 5);
    Wait(again);
    EXPECT_EQ(again->counts[0].cached, 0) << first;
  }
  WaitIdle();
  scheduler_.reset();
  // They count toward the limit, and are removed before anything else.
  Start({.kv_budget_bytes = 20000,
         .prefix_cache = {.disk = folder_.path(), .disk_bytes = 9000, .disk_queue_bytes = 1 << 20}});
  EXPECT_GE(Metric("dsv4_kv_disk_total", "event=\"removed\""), 2);
  EXPECT_GE(Metric("dsv4_cached_prefixes", "place=\"disk\""), 3);
}

// A link to a sound file elsewhere is not read, and does not count as a file of another model.
TEST_F(SchedulerDisk, ALinkIsNoFileOfTheCache) {
  const dsv4::test::TempDir elsewhere;
  const std::string note = std::string("dsv4 tenant, texts 1\n") + std::string(4, '\0');  // of the tenant ""
  ASSERT_TRUE(FakeImage(Counting(100, 300), {}, engine_.fingerprint, note).Write(elsewhere / "target").ok());
  std::filesystem::create_symlink(elsewhere / "target", folder_.path() + "/link.dsv4kv");
  std::filesystem::create_symlink("nowhere", folder_.path() + "/dead.dsv4kv");
  StartWithDisk();
  EXPECT_EQ(Metric("dsv4_cached_prefixes", "place=\"disk\""), 0);
  EXPECT_EQ(Metric("dsv4_kv_disk_total", "event=\"foreign\""), 0);
  EXPECT_EQ(Metric("dsv4_kv_disk_total", "event=\"refused\""), 0);
  const auto client = Submit({Counting(100, 300)}, 5);
  Wait(client);
  EXPECT_EQ(client->counts[0].cached, 0);
  scheduler_.reset();
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path() + "/link.dsv4kv"));
  // The same file in the folder is used.
  std::filesystem::copy_file(elsewhere / "target", folder_.path() + "/copy.dsv4kv");
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().filename() != "copy.dsv4kv") std::filesystem::remove(entry.path());
  }
  StartWithDisk();
  EXPECT_EQ(Metric("dsv4_cached_prefixes", "place=\"disk\""), 1);
}

TEST_F(SchedulerDisk, EachTenantFindsItsOwnAfterARestart) {
  StartWithDisk();
  const auto as = [&](const std::string& tenant) {
    auto client = Make({Counting(100, 300)}, 5);
    client->job->tenant = tenant;
    EXPECT_TRUE(scheduler_->Submit(client->job).ok());
    Wait(client);
    WaitIdle();
    return client->counts[0].cached;
  };
  EXPECT_EQ(as("a"), 0);
  EXPECT_EQ(as("b"), 0);
  EXPECT_EQ(as("a"), 299);
  scheduler_.reset();
  StartWithDisk();
  EXPECT_EQ(as("c"), 0);
  EXPECT_EQ(as(""), 0);
  EXPECT_EQ(as("b"), 299);
  EXPECT_EQ(as("a"), 299);
}

TEST_F(SchedulerDisk, WhatAClientSentAsIdsTeachesNoSplitNeitherNowNorAfterARestart) {
  const Tokenizer& t = NanoTokenizer();
  const std::string text = "<｜User｜>Hello there, what is this? I would like to know, and to know it now.";
  Ids split = t.Encode("<｜User｜>");
  for (const char c : text.substr(std::string("<｜User｜>").size()))
    split.push_back(*t.FindToken(std::string_view(&c, 1)));
  ASSERT_NE(split, t.Encode(text));
  const TokenId user = split.front();
  engine_.next = [user](const Session&) { return user; };
  const RenderedPrompt next{.text = text + "<｜User｜><｜User｜>", .content_ranges = {}};
  for (const bool encoded_here : {false, true}) {
    StartWithDisk();
    const auto client = Make({split}, 1);
    if (encoded_here)
      client->job->sequences[0].text = std::make_shared<const RenderedPrompt>(
          RenderedPrompt{.text = text, .content_ranges = {}});
    ASSERT_TRUE(scheduler_->Submit(client->job).ok());
    Wait(client);
    WaitIdle();
    Ids expected = encoded_here ? split : t.Encode(text);
    expected.insert(expected.end(), {user, user});
    Ids whole = t.Encode(text);  // another tenant has taught nothing
    whole.insert(whole.end(), {user, user});
    EXPECT_EQ(scheduler_->EncodePrompt("", next), expected) << encoded_here;
    EXPECT_EQ(scheduler_->EncodePrompt("other", next), whole) << encoded_here;
    scheduler_.reset();
    StartWithDisk();
    EXPECT_EQ(scheduler_->EncodePrompt("", next), expected) << encoded_here;
    EXPECT_EQ(scheduler_->EncodePrompt("other", next), whole) << encoded_here;
    scheduler_.reset();
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) std::filesystem::remove(file.path());
  }
}

TEST(FolderLock, IsHeldByOneServer) {
  const dsv4::test::TempDir folder;
  auto first = FolderLock::Take(folder.path());
  ASSERT_TRUE(first.ok()) << first.status().message();
  const auto second = FolderLock::Take(folder.path());
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.status().message().find("another server uses the folder '" + folder.path()), std::string::npos);
  first->reset();
  EXPECT_TRUE(FolderLock::Take(folder.path()).ok());
  EXPECT_FALSE(FolderLock::Take(folder.path() + "/none").ok());
}

TEST_F(SchedulerDisk, AFolderThatVanishesCostsTheCacheOnly) {
  StartWithDisk();
  Wait(Submit({Counting(100, 300)}, 5));
  WaitIdle();
  std::filesystem::remove_all(folder_.path());
  const auto stream = Submit({{2000}}, 1700);
  Wait(stream);
  EXPECT_EQ(stream->tokens[0].size(), 1700u);
  for (int i = 0; i < 10000 && Metric("dsv4_kv_disk_total", "event=\"failed\"") < 1; ++i) {
    Wait(Submit({{3000}}, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(Metric("dsv4_kv_disk_total", "event=\"failed\""), 0);
}

}  // namespace
}  // namespace dsv4::server
