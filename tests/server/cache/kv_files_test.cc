// The thread that reads and writes KV files, when memory runs out.
#include "server/cache/kv_files.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/test_files.h"
#include "server/fake_engine.h"
#include "support/count_allocations.h"

namespace dsv4::server {
namespace {

// The allocations of a task are counted from the end of the task before it.
class KvFilesMemory : public ::testing::Test {
 protected:
  // The next tasks may make `left` allocations each; further ones fail.
  void Allow(int64_t left) {
    left_ = left;
    Do([&] { files_.Remove("/nothing"); });  // still with the limit before
  }
  template <typename Call>
  void Do(const Call& call) {
    const int before = num_ended_;
    call();
    for (int i = 0; i < 10000 && num_ended_ == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(num_ended_, before + 1);
  }
  template <typename Call>
  KvFiles::Done DoOne(const Call& call) {
    Do(call);
    const std::list<KvFiles::Done> done = files_.TakeDone();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? KvFiles::Done{} : done.front();
  }
  // Returns how many tasks failed before one had enough memory, and the result of that task.
  template <typename Call>
  int64_t FailuresOf(const Call& call, KvFiles::Done* done) {
    for (int64_t left = 0; left < 1000; ++left) {
      Allow(left);
      *done = DoOne(call);
      EXPECT_EQ(done->path, path_);
      if (done->status.ok()) return left;
      EXPECT_EQ(done->status.code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(done->status.message(), ::testing::HasSubstr("no memory to read or write '" + path_ + "'"));
    }
    return 1000;
  }

  const test::TempDir folder_;
  const std::string path_ = folder_ / "file";
  const std::vector<TokenId> tokens_ = std::vector<TokenId>(1000, 7);
  const std::shared_ptr<const SnapshotImage> image_ = std::make_shared<FakeImage>(tokens_, std::function<void()>(),
                                                                                  "fake", "note");
  FakeEngine engine_{1000};
  std::atomic<int64_t> left_ = -1;
  std::atomic<int> num_ended_ = 0;
  KvFiles files_{engine_, 1 << 20, [this] {
                   test::allocation_limit.left = left_;
                   ++num_ended_;
                 }};
};

TEST_F(KvFilesMemory, WhereverItEndsTheTaskFailsAndTheThreadGoesOn) {
  KvFiles::Done done;
  EXPECT_GT(FailuresOf([&] { files_.Write(image_, path_); }, &done), 0);
  EXPECT_EQ(done.image, image_);
  EXPECT_EQ(std::filesystem::file_size(path_), 16 + 4 * tokens_.size());
  EXPECT_GT(FailuresOf([&] { EXPECT_TRUE(files_.Read(path_)); }, &done), 0);
  ASSERT_NE(done.image, nullptr);
  EXPECT_EQ(done.image->info().tokens, tokens_);
}

TEST_F(KvFilesMemory, FilesAreRemovedWithoutAny) {
  EXPECT_TRUE(DoOne([&] { files_.Write(image_, path_); }).status.ok());
  Allow(0);
  Do([&] { files_.Remove(path_); });
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(files_.TakeDone().empty());
}

TEST(FolderLock, IsNotTakenThroughALink) {
  const test::TempDir folder, other;
  std::filesystem::create_symlink(other / "target", folder / "lock");
  EXPECT_FALSE(FolderLock::Take(folder.path()).ok());
  EXPECT_FALSE(std::filesystem::exists(other / "target"));
  std::filesystem::remove(folder / "lock");
  const auto lock = FolderLock::Take(folder.path());
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  const auto second = FolderLock::Take(folder.path());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), ::testing::HasSubstr("another server uses the folder"));
}

}  // namespace
}  // namespace dsv4::server
