#include "server/base/kept_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "io/test_files.h"

namespace dsv4::server {
namespace {

namespace fs = std::filesystem;

class Kept : public ::testing::Test {
 protected:
  Kept() : folder_(std::move(KeptFolder::Open(temp_ / "kept")).value()) {}
  std::string Path(const std::string& name) const { return temp_ / ("kept/" + name); }
  bool Write(const std::string& name, std::string_view bytes) {
    return folder_.Write(name, std::array<std::string_view, 1>{bytes});
  }
  void Put(const std::string& name, const std::string& bytes) { std::ofstream(Path(name), std::ios::binary) << bytes; }

  const test::TempDir temp_;
  KeptFolder folder_;
};

TEST_F(Kept, FilesComeBackAndGo) {
  const std::string bytes(100000, 'x');
  ASSERT_TRUE(folder_.Write("a", std::array<std::string_view, 3>{"1", bytes, "2"}));
  EXPECT_EQ(folder_.Read("a", 100002), "1" + bytes + "2");
  EXPECT_EQ(folder_.Read("a", 100001), std::nullopt);
  EXPECT_TRUE(Write("a", ""));
  EXPECT_EQ(folder_.Read("a", 0), "");
  ASSERT_EQ(folder_.List().size(), 1u);
  EXPECT_EQ(folder_.List()[0].name, "a");
  struct stat st;
  ASSERT_EQ(::stat(Path("a").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_TRUE(folder_.Remove("a").ok());
  EXPECT_TRUE(folder_.Remove("a").ok());
  EXPECT_TRUE(folder_.Sync().ok());
  EXPECT_EQ(folder_.Read("a", 100), std::nullopt);
}

// A pipe would block, a device never ends, and what is elsewhere is not this server's.
TEST_F(Kept, WhatIsNoFileIsNotRead) {
  Put("file", "mine");
  std::ofstream(temp_ / "elsewhere") << "theirs";
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", Path("endless"));
  fs::create_symlink(temp_ / "elsewhere", Path("link"));
  fs::create_symlink("file", Path("near"));
  fs::create_directory(Path("folder"));
  for (const char* name : {"pipe", "endless", "link", "near", "folder", "none", ""})
    EXPECT_EQ(folder_.Read(name, 1 << 20), std::nullopt) << name;
  EXPECT_EQ(folder_.Read("file", 1 << 20), "mine");
  ASSERT_EQ(folder_.List().size(), 1u);
  EXPECT_EQ(folder_.List()[0].bytes, 4);
  EXPECT_FALSE(folder_.Remove("folder").ok());
}

// A write neither waits for a pipe nor changes the target of a link.
TEST_F(Kept, WritesGoThroughNothingThatWasPlanted) {
  std::ofstream(temp_ / "elsewhere") << "theirs";
  for (const char* name : {"a", "a.tmp"}) {
    for (const bool pipe : {true, false}) {
      fs::remove(Path(name));
      if (pipe) {
        ASSERT_EQ(::mkfifo(Path(name).c_str(), 0600), 0);
      } else {
        fs::create_symlink(temp_ / "elsewhere", Path(name));
      }
      ASSERT_TRUE(Write("a", "mine"));
      EXPECT_EQ(folder_.Read("a", 100), "mine");
    }
  }
  std::string theirs;
  std::ifstream(temp_ / "elsewhere") >> theirs;
  EXPECT_EQ(theirs, "theirs");
  fs::create_directory(Path("a.tmp"));
  EXPECT_FALSE(Write("a", "new"));
  EXPECT_EQ(folder_.Read("a", 100), "mine");
}

TEST_F(Kept, TheFolderIsNoLink) {
  fs::create_directory(temp_ / "other");
  fs::create_symlink(temp_ / "other", temp_ / "link");
  std::ofstream(temp_ / "file") << "x";
  for (const char* name : {"link", "file"}) {
    const auto opened = KeptFolder::Open(temp_ / name);
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(opened.status().message().find(temp_ / name), std::string::npos) << opened.status().message();
  }
  // The folder that was opened stays in use, whatever takes its name later.
  fs::rename(temp_ / "kept", temp_ / "moved");
  fs::create_symlink(temp_ / "other", temp_ / "kept");
  ASSERT_TRUE(Write("a", "mine"));
  EXPECT_TRUE(fs::exists(temp_ / "moved/a"));
  EXPECT_TRUE(fs::is_empty(temp_ / "other"));
}

}  // namespace
}  // namespace dsv4::server
