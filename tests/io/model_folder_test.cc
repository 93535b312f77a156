#include "dsv4/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/test_files.h"

namespace dsv4 {
namespace {

using test::TempDir;
using test::WriteBytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& path) { return CheckModelFolder(path).message(); }

// tests/cli/files_test.py has the paths that are refused.
TEST(ModelFolder, FoldersThatMayBeACheckpointPass) {
  const TempDir empty, weights, config, official;
  EXPECT_EQ(ErrorOf(empty.path()), "") << "the reader of config.json has the message";
  WriteBytes(weights / "model-00001-of-00002.safetensors", "");
  WriteBytes(weights / "model.gguf", "GGUF");
  WriteBytes(weights / "training_args.bin", "");
  EXPECT_EQ(ErrorOf(weights.path()), "");
  WriteBytes(config / "config.json", "");
  WriteBytes(config / "encoding.zip", "");
  EXPECT_EQ(ErrorOf(config.path()), "");
  std::filesystem::create_directory(official / "inference");
  WriteBytes(official / "inference/config.json", "");
  EXPECT_EQ(ErrorOf(official.path()), "");
}

TEST(ModelFolder, GgufFilesInAFolderBelowAreNamed) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "Q8_0");
  WriteBytes(dir / "Q8_0/flash-00001-of-00004.gguf", "");
  EXPECT_THAT(ErrorOf(dir.path()), AllOf(HasSubstr("GGUF"), HasSubstr("Q8_0/flash-00001-of-00004.gguf")));
}

TEST(ModelFolder, AModelBelowIsNamed) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "models--a--b/snapshots/rev/");
  std::filesystem::create_directories(dir / "models--a--b/blobs");
  const std::string revision = dir / "models--a--b/snapshots/rev";
  EXPECT_THAT(ErrorOf(dir.path()), AllOf(HasSubstr("hub's cache"), HasSubstr(revision)));
  EXPECT_THAT(ErrorOf(dir / "models--a--b"), HasSubstr(revision));
  EXPECT_EQ(ErrorOf(revision), "");
}

TEST(ModelFolder, OnlyAWholeIdOfARepositoryGetsTheAdviceToDownload) {
  EXPECT_THAT(ErrorOf("owner/name-1.5_x"), HasSubstr("hf download owner/name-1.5_x --local-dir"));
  EXPECT_THAT(ErrorOf("hf://owner/name@main"), HasSubstr("hf download owner/name --local-dir"));
  EXPECT_THAT(ErrorOf("https://huggingface.co/owner/name/tree/main"), HasSubstr("hf download owner/name --local-dir"));
  EXPECT_THAT(ErrorOf("hf.co/owner/name"), HasSubstr("hf download owner/name --local-dir"));
  EXPECT_THAT(ErrorOf("owner/name@refs/pr/1"), HasSubstr("hf download owner/name --local-dir"));
  for (const char* path : {"/absent/folder", "./owner/name", "../owner/name", "name", "a/b/c", "a/", "~/model", "",
                           "s3://bucket/name", "https://example.com/owner/name", "https://"}) {
    EXPECT_THAT(ErrorOf(path), AllOf(Not(HasSubstr("hf download")), Not(HasSubstr("\n")))) << path;
    EXPECT_NE(ErrorOf(path), "") << path;
  }
}

}  // namespace
}  // namespace dsv4
