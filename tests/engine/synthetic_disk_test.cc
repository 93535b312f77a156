// Synthetic weights on disk: the same model as in memory, and no partial files.
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "io/test_files.h"
#include "model/deepseek_v4/load/synthetic_disk.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using dsv4::test::TempDir;

TEST(SyntheticDisk, LoadsAsTheModelThatItWasWrittenFrom) {
  for (const auto& [fp8_dense, experts] : {std::pair{false, SyntheticExperts::kNvfp4},
                                           {true, SyntheticExperts::kNvfp4},
                                           {false, SyntheticExperts::kNvfp4Cast},
                                           {true, SyntheticExperts::kMxfp4}}) {
    const TempDir temp;
    EngineOptions made{.model_dir = "",
                       .synthetic = {.shape = "nano", .fp8_dense = fp8_dense, .seed = 42, .experts = experts},
                       .num_threads = 2};
    const std::string dir = temp / "model";
    const Status status = WriteSyntheticCheckpoint(made, dir);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> from_disk = LogitsOfModel({.model_dir = dir, .num_threads = 2}),
                             want = LogitsOfModel(made);
    ASSERT_FALSE(want.empty());
    // bits: both are finite
    EXPECT_EQ(from_disk, want) << "fp8_dense " << fp8_dense << " experts " << static_cast<int>(experts);
    made.synthetic.seed = 43;
    EXPECT_NE(from_disk, LogitsOfModel(made));
  }
}

TEST(SyntheticDisk, ShardsStayBelowTheLimitAndTheIndexNamesThem) {
  const TempDir temp;
  const auto device = std::move(Device::Open("cpu")).value();
  ThreadPool pool(2);
  const SyntheticModel model{.shape = "nano", .num_layers = 2, .seed = 7};
  constexpr int64_t kLimit = 600'000;  // the embedding alone has 2 MiB
  ASSERT_TRUE(deepseek_v4::WriteSynthetic(*device, pool, model, temp / "m", {}, {.shard_bytes = kLimit}).ok());
  int64_t shards = 0, larger = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp / "m")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    larger += static_cast<int64_t>(entry.file_size()) > kLimit + 65536 ? 1 : 0;  // without the header
  }
  EXPECT_GT(shards, 3);
  EXPECT_EQ(larger, 1);
  EXPECT_EQ(LogitsOfModel({.model_dir = temp / "m"}), LogitsOfModel({.model_dir = "", .synthetic = model}));
}

// Shards that do not fit the first folder are in the second one; a reader sees one checkpoint.
TEST(SyntheticDisk, AnotherDiskTakesWhatTheFirstHasNoRoomFor) {
  const TempDir temp;
  const auto device = std::move(Device::Open("cpu")).value();
  ThreadPool pool(2);
  const SyntheticModel model{.shape = "nano", .num_layers = 2, .seed = 7};
  const std::string dir = temp / "m", beside = temp / "beside";
  deepseek_v4::SyntheticDiskOptions options{.shard_bytes = 600'000, .overflow = beside, .dir_bytes = 4'000'000};
  ASSERT_TRUE(deepseek_v4::WriteSynthetic(*device, pool, model, dir, {}, options).ok());
  int64_t in_dir = 0, links = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.is_symlink()) {
      ++links;
    } else {
      in_dir += static_cast<int64_t>(entry.file_size());
    }
  }
  EXPECT_GT(in_dir, 2'000'000);
  EXPECT_LE(in_dir, options.dir_bytes);
  EXPECT_GT(links, 1);
  EXPECT_EQ(links, std::distance(std::filesystem::directory_iterator(beside), {}));
  EXPECT_EQ(LogitsOfModel({.model_dir = dir}), LogitsOfModel({.model_dir = "", .synthetic = model}));

  // Nothing remains of the second folder if writing is cancelled, and none is made if everything fits the first.
  const auto stop = [](int64_t done, int64_t total) { return done < total * 9 / 10; };
  options.overflow = temp / "beside2";
  EXPECT_EQ(deepseek_v4::WriteSynthetic(*device, pool, model, temp / "m2", stop, options).code(),
            StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(temp / "m2"));
  EXPECT_FALSE(std::filesystem::exists(options.overflow));
  options.dir_bytes = 0;
  EXPECT_TRUE(deepseek_v4::WriteSynthetic(*device, pool, model, temp / "m3", {}, options).ok());
  EXPECT_FALSE(std::filesystem::exists(options.overflow));
  options.overflow = temp / "m4";
  EXPECT_EQ(deepseek_v4::WriteSynthetic(*device, pool, model, temp / "m4", {}, options).code(),
            StatusCode::kInvalidArgument);
}

TEST(SyntheticDisk, RefusesAFolderThatIsThere) {
  const TempDir temp;
  const EngineOptions options{.model_dir = "", .synthetic = {.shape = "nano", .num_layers = 1}};
  const Status status = WriteSyntheticCheckpoint(options, temp.path());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(temp.path()), std::string::npos) << status.message();
  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
  EXPECT_EQ(WriteSyntheticCheckpoint(options, temp / "no/such").code(), StatusCode::kNotFound);
}

TEST(SyntheticDisk, ADiskThatIsTooSmallIsRefusedWithTheNumbers) {
  const TempDir temp;
  const EngineOptions options{.model_dir = "", .synthetic = {.shape = "pro"}};  // 0.9 TB
  const Status status = WriteSyntheticCheckpoint(options, temp / "pro");
  if (FreeDiskBytes(temp.path()) > 1'000'000'000'000) GTEST_SKIP() << "this disk has room for 0.9 TB";
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("free"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(temp / "pro"));
}

TEST(SyntheticDisk, ACancelledWriteLeavesNothing) {
  const TempDir temp;
  EngineOptions options{.model_dir = "", .synthetic = {.shape = "nano"}};
  options.progress = [](const Progress& p) { return p.done < p.total / 2; };
  EXPECT_EQ(WriteSyntheticCheckpoint(options, temp / "m").code(), StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(temp / "m"));
}

}  // namespace
}  // namespace dsv4::test
