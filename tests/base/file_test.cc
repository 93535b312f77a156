#include "base/file.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/input_file.h"
#include "base/str.h"

static std::atomic<int> num_umask_calls{0};

// Takes the place of the system's function in this program.
extern "C" mode_t umask(mode_t mask) {
  ++num_umask_calls;
  return static_cast<mode_t>(::syscall(SYS_umask, mask));
}

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

// Each test has its own folder.
class File : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "dsv4_file_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  int64_t NumEntries() const {
    int64_t n = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) n += entry.exists();
    return n;
  }

  std::string folder_;
};

TEST_F(File, WritesAndReadsBackEveryByte) {
  std::string bytes;
  for (int i = 0; i < 300000; ++i) bytes.push_back(static_cast<char>(i * 7));
  ASSERT_TRUE(WriteFile(Path("a"), bytes).ok());
  EXPECT_TRUE(FileExists(Path("a")));
  const auto read = ReadFile(Path("a"), 300000);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(*read == bytes);
  ASSERT_TRUE(WriteFile(Path("a"), "short").ok());  // replaces
  EXPECT_EQ(*ReadFile(Path("a"), 10), "short");
  ASSERT_TRUE(WriteFile(Path("a"), "").ok());
  EXPECT_EQ(*ReadFile(Path("a"), 10), "");
  EXPECT_EQ(NumEntries(), 1);  // no temporary file remains
}

TEST_F(File, ReadRefusesWhatItCannotRead) {
  EXPECT_EQ(ReadFile(Path("missing"), 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(Path("missing") + "/below", 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile("", 10).status().code(), StatusCode::kNotFound);
  const Status folder = ReadFile(folder_, 10).status();
  EXPECT_EQ(folder.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(folder.message().find("folder"), std::string::npos);
  ASSERT_TRUE(WriteFile(Path("big"), "12345678901").ok());
  const Status big = ReadFile(Path("big"), 10).status();
  EXPECT_EQ(big.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(big.message().find("11 bytes"), std::string::npos) << big.message();
  EXPECT_EQ(ReadFile(Path("big"), 11)->size(), 11u);
}

// A file of this program: what is planted in its place is refused at once.
TEST_F(File, FilesOfThisProgramAreRegularFiles) {
  ASSERT_TRUE(WriteFile(Path("file"), "text").ok());
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  fs::create_symlink("file", Path("link"));
  fs::create_symlink("/dev/zero", Path("endless"));
  fs::create_symlink("none", Path("dangling"));
  EXPECT_EQ(*ReadFile(Path("link"), 10), "text");
  EXPECT_EQ(*ReadFile(Path("file"), 10, FileFrom::kProgram), "text");
  EXPECT_FALSE(ReadFile(Path("file"), 3, FileFrom::kProgram).ok());
  EXPECT_TRUE(InputFile::Open(Path("file")).ok());
  for (const char* name : {"link", "endless", "dangling", "pipe"}) {
    const bool pipe = name == std::string("pipe");
    for (const Status& status :
         {ReadFile(Path(name), 1 << 20, FileFrom::kProgram).status(), InputFile::Open(Path(name)).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
      EXPECT_NE(status.message().find(Path(name)), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(pipe ? "not a regular file" : "is a link"), std::string::npos)
          << status.message();
    }
  }
  EXPECT_EQ(ReadFile("/dev/zero", 10, FileFrom::kProgram).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(Path("none"), 10, FileFrom::kProgram).status().code(), StatusCode::kNotFound);
}

// For a moment, files of other threads would be open to everybody.
TEST_F(File, WritingObeysTheUmaskAndLeavesItAlone) {
  for (const mode_t mask : {mode_t{022}, mode_t{077}, mode_t{0}}) {
    const mode_t before = ::umask(mask);
    num_umask_calls = 0;
    const bool written = WriteFile(Path("a"), "x").ok();
    const int calls = num_umask_calls;
    ::umask(before);
    ASSERT_TRUE(written);
    EXPECT_EQ(calls, 0);
    struct stat st;
    ASSERT_EQ(::stat(Path("a").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0666 & ~mask);
    fs::remove(Path("a"));
  }
}

TEST_F(File, ReadsPipesUpToTheLimit) {
  for (const int64_t limit : {int64_t{200000}, int64_t{199999}}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::thread writer([fd = ends[1]] {
      const std::string bytes(200000, 'x');  // more than the buffer of a pipe
      size_t done = 0;
      while (done < bytes.size()) {
        const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
        if (n <= 0) break;
        done += static_cast<size_t>(n);
      }
      ::close(fd);
    });
    const auto read = ReadFile(StrCat("/proc/self/fd/", ends[0]), limit);
    EXPECT_EQ(read.ok(), limit == 200000);
    if (read.ok()) {
      EXPECT_EQ(read->size(), 200000u);
    }
    char rest[4096];
    while (::read(ends[0], rest, sizeof(rest)) > 0) {
    }
    writer.join();
    ::close(ends[0]);
  }
}

TEST_F(File, FailedWritesLeaveTheOldFileAndNothingElse) {
  EXPECT_EQ(WriteFile(Path("missing/a"), "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(NumEntries(), 0);
  fs::create_directory(Path("folder"));
  EXPECT_FALSE(WriteFile(Path("folder"), "x").ok());  // cannot replace a folder
  EXPECT_EQ(NumEntries(), 1);
  ASSERT_TRUE(WriteFile(Path("a"), "old").ok());
  // A rename would replace a link or a pipe.
  fs::create_symlink(Path("a"), Path("link"));
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    const Status status = WriteFile(Path(name), "new");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("not a regular file"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(*ReadFile(Path("a"), 10), "old");
  EXPECT_EQ(NumEntries(), 4);
}

TEST_F(File, PiecesAreWrittenOneBehindTheOther) {
  const std::vector<std::string_view> pieces = {"ab", "", "cde"};
  ASSERT_TRUE(WriteFile(Path("p"), pieces).ok());
  EXPECT_EQ(*ReadFile(Path("p"), 10), "abcde");
  struct stat st;
  ASSERT_EQ(::stat(Path("p").c_str(), &st), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(st.st_mode & 0777, 0666 & ~mask);  // like any other new file; a temporary file's mode would be private
}

TEST_F(File, ReadersSeeTheOldFileOrTheNewOneNeverAPart) {
  const std::string a(100000, 'a'), b(100000, 'b');
  ASSERT_TRUE(WriteFile(Path("f"), a).ok());
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(WriteFile(Path("f"), i % 2 ? a : b).ok());
  });
  for (int i = 0; i < 200; ++i) {
    const auto read = ReadFile(Path("f"), 200000);
    ASSERT_TRUE(read.ok());
    ASSERT_TRUE(*read == a || *read == b);
  }
  writer.join();
}

TEST_F(File, MapsAWholeFile) {
  ASSERT_TRUE(WriteFile(Path("a"), "hello").ok());
  auto map = MappedFile::Open(Path("a"));
  ASSERT_TRUE(map.ok());
  std::shared_ptr<const MappedFile> file = *map;
  EXPECT_EQ(file->size(), 5);
  EXPECT_EQ(file->path(), Path("a"));
  EXPECT_EQ(std::memcmp(file->data(), "hello", 5), 0);
  fs::remove(Path("a"));  // the bytes remain
  EXPECT_EQ(file->data()[4], 'o');
}

TEST_F(File, MapRefusesWhatItCannotMap) {
  EXPECT_EQ(MappedFile::Open(Path("missing")).status().code(), StatusCode::kNotFound);
  EXPECT_NE(MappedFile::Open(folder_).status().message().find("folder"), std::string::npos);
  ASSERT_TRUE(WriteFile(Path("empty"), "").ok());
  EXPECT_EQ(MappedFile::Open(Path("empty")).status().code(), StatusCode::kDataLoss);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Status pipe = MappedFile::Open(StrCat("/proc/self/fd/", ends[0])).status();
  EXPECT_EQ(pipe.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(pipe.message().find("not a regular file"), std::string::npos);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(MappedFile::Open("/dev/null").ok());
}

TEST_F(File, MapOfANamedPipeFailsAtOnce) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(Path("fifo")).status().code(),
            StatusCode::kInvalidArgument);  // there is no writer
}

TEST_F(File, UnreadableFilesAreErrorsThatNameThem) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  ASSERT_TRUE(WriteFile(Path("secret"), "x").ok());
  ASSERT_EQ(::chmod(Path("secret").c_str(), 0), 0);
  const Status status = ReadFile(Path("secret"), 10).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("secret"), std::string::npos);
}

TEST_F(File, InputIsReadInPiecesAndItsEndIsAnError) {
  ASSERT_TRUE(WriteFile(Path("a"), "0123456789").ok());
  const auto file = InputFile::Open(Path("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), 10);
  char piece[4];
  ASSERT_TRUE((*file)->Read(3, 4, piece).ok());
  EXPECT_EQ(std::string(piece, 4), "3456");
  EXPECT_EQ((*file)->Read(8, 4, piece).code(), StatusCode::kDataLoss);
  fs::resize_file(Path("a"), 5);  // while it is open
  const Status cut = (*file)->Read(3, 4, piece);
  EXPECT_EQ(cut.code(), StatusCode::kDataLoss);
  EXPECT_NE(cut.message().find(Path("a")), std::string::npos);
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  ASSERT_TRUE(WriteFile(Path("empty"), "").ok());
  for (const char* name : {"pipe", "empty", "", "missing"}) EXPECT_FALSE(InputFile::Open(Path(name)).ok()) << name;
}

}  // namespace
}  // namespace dsv4
