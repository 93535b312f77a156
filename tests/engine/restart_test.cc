// A device that fails, and the engine after it.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "dsv4/snapshot.h"
#include "engine/engine_impl.h"
#include "io/test_files.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

class Restart : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = LoadOrFail({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .num_threads = 1});
    ASSERT_NE(engine_, nullptr);
    tokens_ = SomeTokens(20, 1, engine_->info().vocab_size);
  }
  Device& device() { return dynamic_cast<EngineImpl&>(*engine_).runner().device(); }
  std::vector<float> Logits() {
    std::vector<float> logits;
    const auto session = std::move(engine_->NewSession()).value();
    EXPECT_TRUE(session->Append(tokens_, LogitRows::kAll, &logits).ok());
    return logits;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> tokens_;
};

TEST_F(Restart, ADeviceThatFailsSaysSoUntilItIsOpenedAnew) {
  const std::vector<float> before = Logits();
  auto session = std::move(engine_->NewSession()).value();
  device().Fail("a test");
  const Status failed = session->Append(tokens_, LogitRows::kNone, nullptr);
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_EQ(engine_->health().message(), failed.message());
  EXPECT_NE(failed.message().find("a test"), std::string::npos);
  EXPECT_TRUE(session->tokens().empty());
  EXPECT_EQ(engine_->Restart().code(), StatusCode::kInvalidArgument);  // a session remains
  session.reset();
  ASSERT_TRUE(engine_->Restart().ok());
  EXPECT_TRUE(engine_->health().ok());
  EXPECT_EQ(Logits(), before);
}

TEST_F(Restart, SnapshotsOnDiskSurviveThoseInMemoryAreNotWritten) {
  const TempDir dir;
  ASSERT_TRUE(engine_->SnapshotFingerprint().ok());
  auto session = std::move(engine_->NewSession()).value();
  ASSERT_TRUE(session->Append(tokens_, LogitRows::kNone, nullptr).ok());
  auto snapshot = std::move(session->Snapshot()).value();
  ASSERT_TRUE(std::move(snapshot->MakeImage("")).value()->Write(dir / "a").ok());
  device().Fail("a test");
  EXPECT_EQ(snapshot->MakeImage("").status().code(), StatusCode::kInternal);
  session.reset();
  snapshot.reset();
  ASSERT_TRUE(engine_->Restart().ok());
  const auto loaded = engine_->LoadSnapshot(dir / "a");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ((*loaded)->tokens(), tokens_);
}

TEST_F(Restart, SnapshotsAreReadBesideIt) {
  const TempDir dir;
  ASSERT_TRUE(engine_->SnapshotFingerprint().ok());
  {
    auto session = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session->Append(tokens_, LogitRows::kNone, nullptr).ok());
    const auto snapshot = std::move(session->Snapshot()).value();
    ASSERT_TRUE(std::move(snapshot->MakeImage("")).value()->Write(dir / "a").ok());
  }
  std::atomic<bool> stop = false;
  std::atomic<int> refused = 0;
  std::thread reader([&] {
    while (!stop) refused += engine_->ReadSnapshot(dir / "a").ok() ? 0 : 1;
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine_->Restart().ok());
  stop = true;
  reader.join();
  EXPECT_EQ(refused, 0);
}

TEST_F(Restart, InjectedAfterSoManyPasses) {
  ::setenv("DSV4_FAIL_DEVICE_AFTER", "3", 1);
  ASSERT_TRUE(engine_->Restart().ok());
  auto session = std::move(engine_->NewSession()).value();
  const TokenId id = 5;
  EXPECT_TRUE(session->Append({&id, 1}, LogitRows::kNone, nullptr).ok());
  EXPECT_TRUE(session->Append({&id, 1}, LogitRows::kNone, nullptr).ok());
  EXPECT_EQ(session->Append({&id, 1}, LogitRows::kNone, nullptr).code(), StatusCode::kInternal);
  EXPECT_EQ(session->tokens().size(), 2u);
  ::unsetenv("DSV4_FAIL_DEVICE_AFTER");
}

TEST(RestartOfMadeWeights, MayBeStoppedAndDoneAgain) {
  for (const char* device : {"cpu", "cpu*2"}) {
    auto engine = LoadOrFail({.synthetic = {.shape = "nano"}, .device = device, .num_threads = 2});
    ASSERT_NE(engine, nullptr);
    int heard = 0;
    EXPECT_EQ(engine->Restart([&](const Progress&) { return ++heard < 2; }).code(), StatusCode::kCancelled);
    EXPECT_EQ(heard, 2);
    EXPECT_EQ(engine->health().code(), StatusCode::kCancelled);
    EXPECT_EQ(engine->NewSession().status().code(), StatusCode::kCancelled);
    EXPECT_TRUE(engine->Restart([&](const Progress&) { return ++heard > 0; }).ok());
    EXPECT_GT(heard, 3);
    EXPECT_TRUE(engine->NewSession().ok());
  }
}

class RestartOfFiles : public ::testing::TestWithParam<const char*> {};
// The part that only the second rank holds also counts.
INSTANTIATE_TEST_SUITE_P(Devices, RestartOfFiles, ::testing::Values("cpu", "cpu*2"),
                         [](const auto& device) { return device.index == 0 ? "one_rank" : "two_ranks"; });

TEST_P(RestartOfFiles, AnotherModelIsRefused) {
  const TempDir dir;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::string(DSV4_SOURCE_DIR) + "/models/nano/" + name, dir / name);
  }
  auto engine = LoadOrFail({.model_dir = dir.path(), .device = GetParam(), .num_threads = 1});
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->SnapshotFingerprint().ok());
  // Replaces the file, as a download would.
  std::filesystem::copy_file(dir / "model.safetensors", dir / "new");
  {
    std::fstream file(dir / "new", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    const int byte = file.peek();
    file.seekp(-3, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  std::filesystem::rename(dir / "new", dir / "model.safetensors");
  EXPECT_EQ(engine->Restart().code(), StatusCode::kDataLoss);
  EXPECT_EQ(engine->NewSession().status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(engine->kv_bytes(), 0);
  // Restores the right files.
  std::filesystem::remove(dir / "model.safetensors");
  std::filesystem::copy_file(std::string(DSV4_SOURCE_DIR) + "/models/nano/model.safetensors",
                             dir / "model.safetensors");
  EXPECT_TRUE(engine->Restart().ok());
  EXPECT_TRUE(engine->NewSession().ok());
}

TEST(RestartOfRanks, AllAreOpenedAnewWhereOneFails) {
  ::setenv("DSV4_FAIL_DEVICE_AFTER", "2:1", 1);
  auto engine = LoadOrFail(
      {.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .device = "cpu*2", .num_threads = 2});
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> tokens = SomeTokens(8, 1, engine->info().vocab_size);
  std::vector<float> first, again;
  auto session = std::move(engine->NewSession()).value();
  EXPECT_TRUE(session->Append(tokens, LogitRows::kLast, &first).ok());
  const Status failed = session->Append(tokens, LogitRows::kLast, &again);
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_TRUE(failed.message().starts_with("rank 1 (after ")) << failed.message();
  EXPECT_EQ(engine->health().message(), failed.message());
  session.reset();
  ::unsetenv("DSV4_FAIL_DEVICE_AFTER");
  ASSERT_TRUE(engine->Restart().ok());
  session = std::move(engine->NewSession()).value();
  EXPECT_TRUE(session->Append(tokens, LogitRows::kLast, &again).ok());
  EXPECT_EQ(again, first);
}

}  // namespace
}  // namespace dsv4::test
