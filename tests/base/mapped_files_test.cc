#include "dsv4/mapped_files.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

class MappedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "dsv4_mapped_files_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ +
            "/a\x1b"
            "b";
    ASSERT_TRUE(WriteFile(path_, std::string(20000, 'x')).ok());
    file_ = std::move(MappedFile::Open(path_)).value();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_, path_;
  std::shared_ptr<const MappedFile> file_;
};

TEST_F(MappedFiles, AnAddressTellsTheFileFitForATerminal) {
  const char* name = MappedFileAt(file_->data() + 19999);
  ASSERT_NE(name, nullptr);
  EXPECT_EQ(std::string(name), folder_ + "/a?b");
  EXPECT_EQ(MappedFileAt(&name), nullptr);
  const uint8_t* gone = file_->data();
  file_.reset();
  EXPECT_EQ(MappedFileAt(gone), nullptr);
}

TEST_F(MappedFiles, OneThatIsWrittenToHasChanged) {
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{});
  const auto time = fs::last_write_time(path_);
  fs::last_write_time(path_, time + std::chrono::seconds(1));
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{path_});
  fs::last_write_time(path_, time);
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{});
  fs::resize_file(path_, 30000);
  fs::last_write_time(path_, time);
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{path_});
  file_.reset();
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{});
}

TEST_F(MappedFiles, OneThatIsReplacedOrDeletedHasNot) {
  ASSERT_TRUE(WriteFile(path_, "another").ok());  // by a rename
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{});
  EXPECT_EQ(file_->data()[19999], 'x');
  fs::remove(path_);
  EXPECT_EQ(ChangedMappedFiles(), std::vector<std::string>{});
}

}  // namespace
}  // namespace dsv4
