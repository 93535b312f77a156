// The response store: what it gives to whom, what is gone after a removal, and what is planted in its folder.
#include "server/api/response_store.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "io/test_files.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

namespace fs = std::filesystem;

StoredResponse Response(const std::string& text) { return {.tenant = "", .response = text, .items = "[]"}; }

std::string Id(char c) { return "resp_" + std::string(24, c); }

std::optional<KeptFolder> FolderAt(const std::string& path) { return std::move(KeptFolder::Open(path)).value(); }

// A store with files in a folder of its own.
class StoredResponses : public ::testing::Test {
 protected:
  std::string Path(char c) const { return temp_ / (Id(c) + ".json"); }
  // Writes what was put, and starts again: responses are on disk alone.
  void Restart(size_t max_bytes = 1 << 20) {
    store_.reset();
    store_.emplace(max_bytes, FolderAt(temp_.path()));
  }

  const test::TempDir temp_;
  std::optional<ResponseStore> store_{std::in_place, size_t{1} << 20, FolderAt(temp_.path())};
};

// The check of memory and the check of files: each fails without the other.
TEST_F(StoredResponses, BelongToOneTenant) {
  store_->Put(Id('a'), {.tenant = "one", .response = "{}", .items = "[]"});
  const auto expect_only_one = [&](const char* where) {
    for (const char* other : {"", "two", "on", "one2"}) {
      EXPECT_EQ(store_->Get(other, Id('a')), nullptr) << where << ": " << other;
      EXPECT_EQ(store_->Remove(other, Id('a')).code(), StatusCode::kNotFound) << where << ": " << other;
    }
  };
  expect_only_one("in memory");
  EXPECT_NE(store_->Get("one", Id('a')), nullptr);
  Restart();
  expect_only_one("on disk");  // and a refusal puts nothing into memory
  expect_only_one("on disk");
  EXPECT_NE(store_->Get("one", Id('a')), nullptr);
  expect_only_one("read from disk");
  EXPECT_TRUE(store_->Remove("one", Id('a')).ok());
  EXPECT_EQ(store_->Get("one", Id('a')), nullptr);
}

// When Remove returns, the file is gone, however much the thread that writes has to do.
TEST_F(StoredResponses, AreGoneFromTheDiskWhenTheyAreRemoved) {
  Restart(size_t{256} << 20);
  for (int round = 0; round < 8; ++round) {
    store_->Put(Id('a'), Response("{}"));
    for (const char c : {'b', 'c', 'd'}) store_->Put(Id(c), Response("{" + std::string(10 << 20, ' ') + "}"));
    if (round % 2 == 0) store_->Put(Id('e'), Response("{}"));
    for (const char c : {'a', 'e'}) {  // perhaps not written yet
      const bool known = store_->Get("", Id(c)) != nullptr;
      EXPECT_EQ(store_->Remove("", Id(c)).ok(), known);
      EXPECT_FALSE(fs::exists(Path(c)));
    }
  }
  Restart(size_t{256} << 20);  // everything that was queued is done
  for (const char c : {'a', 'e'}) {
    EXPECT_FALSE(fs::exists(Path(c)));
    EXPECT_EQ(store_->Get("", Id(c)), nullptr);
  }
  EXPECT_NE(store_->Get("", Id('d')), nullptr);
}

TEST_F(StoredResponses, AreGoneFromTheDiskIfTheyAreRemovedWhileTheyAreWritten) {
  Restart(size_t{256} << 20);
  int seen = 0;
  for (int round = 0; round < 20; ++round) {
    store_->Put(Id('a'), Response("{" + std::string(40 << 20, ' ') + "}"));
    bool writes = false;
    for (int i = 0; i < 20000 && !writes && !fs::exists(Path('a')); ++i) {
      writes = fs::exists(Path('a') + ".tmp");
      if (!writes) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    seen += writes ? 1 : 0;
    EXPECT_TRUE(store_->Remove("", Id('a')).ok());
    EXPECT_FALSE(fs::exists(Path('a')));
    EXPECT_FALSE(fs::exists(Path('a') + ".tmp"));
    if (seen == 3) break;
  }
  EXPECT_GT(seen, 0);
  Restart();
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

TEST_F(StoredResponses, ThatCannotBeRemovedFromTheDiskStay) {
  store_->Put(Id('a'), Response("{}"));
  Restart();
  ASSERT_NE(store_->Get("", Id('a')), nullptr);
  fs::remove(Path('a'));
  fs::create_directory(Path('a'));
  EXPECT_EQ(store_->Remove("", Id('a')).code(), StatusCode::kInternal);
  EXPECT_NE(store_->Get("", Id('a')), nullptr);
}

TEST_F(StoredResponses, StayIfOneIsLargerThanTheStore) {
  store_->Put(Id('a'), Response("{}"));
  store_->Put(Id('b'), Response("{" + std::string(1 << 20, ' ') + "}"));
  EXPECT_NE(store_->Get("", Id('a')), nullptr);
  EXPECT_EQ(store_->Get("", Id('b')), nullptr);
  Restart();
  EXPECT_NE(store_->Get("", Id('a')), nullptr);
}

TEST_F(StoredResponses, ArePlainFilesOfABoundedSize) {
  const std::string good = "\"\"\n{}\n[]\n";
  const auto put = [&](char c, const std::string& text) { std::ofstream(Path(c)) << text; };
  std::ofstream(temp_ / "elsewhere") << good;
  for (const char c : {'0', '1', '2', '3', '4'}) put(c, good);
  Restart(8 << 10);
  for (const char c : {'1', '2', '3', '4'}) fs::remove(Path(c));
  ASSERT_EQ(::mkfifo(Path('1').c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", Path('2'));
  fs::create_symlink(temp_ / "elsewhere", Path('3'));
  put('4', "\"\"\n{" + std::string(10 << 10, ' ') + "}\n[]\n");  // grew beyond the store's limit
  EXPECT_NE(store_->Get("", Id('0')), nullptr);
  for (const char c : {'1', '2', '3', '4'}) EXPECT_EQ(store_->Get("", Id(c)), nullptr) << c;
  Restart(8 << 10);
  for (const char c : {'1', '2', '3'}) EXPECT_EQ(store_->Get("", Id(c)), nullptr) << c;
  // Other names are no responses.
  fs::remove(Path('4'));
  Restart(8 << 10);  // removals of files that were beyond the limit end here
  put('0', good);
  const std::vector<std::string> others = {"other", "resp_", Id('5').substr(1), Id('5') + "0",
                                           "resp_" + std::string(24, 'g')};
  for (const std::string& name : others) std::ofstream(temp_ / (name + ".json")) << good;
  Restart(8 << 10);
  for (const std::string& name : others) EXPECT_EQ(store_->Get("", name), nullptr) << name;
  EXPECT_NE(store_->Get("", Id('0')), nullptr);
  EXPECT_TRUE(fs::exists(temp_ / "elsewhere"));
}

// The new response is stored or not. The other ones stay, except the oldest, which go.
TEST(ResponseStore, IsWholeWhereverMemoryRunsOut) {
  for (int64_t left = 0, failed = -1; failed != test::num_failed_allocations; ++left) {
    ASSERT_LT(left, 100);
    failed = test::num_failed_allocations;
    ResponseStore store(1000, std::nullopt);
    const std::string first = "resp_" + std::string(24, 'a');
    StoredResponse response = Response(std::string(200, 'x'));
    test::allocation_limit = {.left = left, .once = true};
    try {
      store.Put(first, std::move(response));
    } catch (const std::bad_alloc&) {
    }
    test::allocation_limit = {};
    for (char c = 'b'; c < 'm'; ++c) store.Put("resp_" + std::string(24, c), Response(std::string(200, c)));
    EXPECT_EQ(store.Get("", first), nullptr);
    const auto last = store.Get("", "resp_" + std::string(24, 'l'));
    ASSERT_NE(last, nullptr);
    EXPECT_EQ(last->response, std::string(200, 'l'));
  }
}

// A file that a killed server left half written is removed. A damaged file is ignored.
TEST(ResponseStore, FilesAreReadWithSuspicion) {
  const test::TempDir folder;
  const auto name = [&](char c) { return "resp_" + std::string(24, c); };
  const auto path = [&](char c) { return (fs::path(folder.path()) / (name(c) + ".json")).string(); };
  const auto write = [](const std::string& file, const std::string& text) { std::ofstream(file) << text; };
  const std::string deep(100000, '[');
  write(path('0'), "\"\"\n{}\n[{\"type\": \"message\"}]\n");
  write(path('1'), "\"\"\n{}\n[{\"type\": \"mess\n");
  write(path('2'), "\"\"\n{}\n{\"a\": 5}\n");
  write(path('3'), "\"\"\n{}\n" + deep + "\n");
  write(path('4'), deep + "\n{}\n[]\n");
  write(path('5'), "\"\"\n{\n[]\n");
  write(path('6') + ".tmp", "\"\"\n{}\n");
  ResponseStore store(1 << 20, FolderAt(folder.path()));
  EXPECT_NE(store.Get("", name('0')), nullptr);
  for (const char c : {'1', '2', '3', '4', '5', '6'}) EXPECT_EQ(store.Get("", name(c)), nullptr) << c;
  EXPECT_FALSE(fs::exists(path('6') + ".tmp"));
}

}  // namespace
}  // namespace dsv4::server
