#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/inspect.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"

namespace dsv4 {
namespace {

using test::Dialect;
using test::MakeCheckpoint;
using test::TempDir;
using test::TestFormat;
using test::TinyConfig;
using test::TinyConfigJson;
using test::WriteModel;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(Inspect, DescribesConfigFormatsPlanAndOps) {
  const TempDir dir;
  auto tensors = MakeCheckpoint(TinyConfig(), {TestFormat::kFp8, TestFormat::kNvfp4});
  tensors.push_back({"mtp.0.enorm.weight", DType::kBf16, {128}, std::string(256, '\0')});
  WriteModel(dir.path(), TinyConfigJson(), tensors);

  const auto d = Inspect({.model_dir = dir.path(), .kv_dtype = KvDtype::kBf16, .index_dtype = IndexDtype::kF32});
  ASSERT_TRUE(d.ok()) << d.status().message();
  EXPECT_EQ(d->info.vocab_size, 16);
  EXPECT_EQ(d->info.max_context, 1048576);
  EXPECT_THAT(d->info.unused_tensors, ElementsAre("mtp.0.enorm.weight"));
  EXPECT_THAT(d->files, ElementsAre(dir / "model.safetensors"));
  EXPECT_THAT(d->config, Contains(Pair("compress_ratios", "0, 4, 128")));
  EXPECT_THAT(d->config, Contains(Pair("hc_eps", "1e-06")));
  int64_t bytes = 0;
  for (const FormatSummary& f : d->formats) bytes += f.bytes;
  EXPECT_EQ(d->info.weight_bytes, bytes);
  EXPECT_EQ(d->plan.weight_bytes, bytes);
  EXPECT_DOUBLE_EQ(d->plan.kv_bytes_per_1k_tokens, 1000 * ((256 + 256) / 4.0 + 256 / 128.0));
  EXPECT_EQ(d->plan.kv_fixed_bytes, 3 * 136 * 256 + (16 * 2 * 256 + 16 * 2 * 128 + 136 * 2 * 128) * 4);
  EXPECT_GT(d->plan.activation_bytes, 0);
  EXPECT_GT(d->plan.available_bytes, 0);
  EXPECT_EQ(d->plan.max_context_that_fits, 1048576);
  EXPECT_THAT(d->ops, Not(IsEmpty()));
}

TEST(Inspect, ContextLimitIsAtMostTheModels) {
  const TempDir dir;
  WriteModel(dir.path(), TinyConfigJson(), MakeCheckpoint(TinyConfig(), {}));
  EXPECT_EQ(Inspect({.model_dir = dir.path(), .max_context = 4096})->info.max_context, 4096);
  EXPECT_EQ(Inspect({.model_dir = dir.path(), .max_context = 1048576})->info.max_context, 1048576);
  const auto beyond = Inspect({.model_dir = dir.path(), .max_context = 1048577});
  EXPECT_EQ(beyond.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(beyond.status().message(),
            "--ctx is 1048577, above the model's limit of 1048576 tokens; remove it, or lower it");
  EXPECT_EQ(Engine::Load({.model_dir = dir.path(), .max_context = 1048577}).status().message(),
            beyond.status().message());
}

TEST(Inspect, GivesTheErrorsOfLoading) {
  const TempDir dir;
  EXPECT_EQ(Inspect({.model_dir = dir.path()}).status().code(), StatusCode::kNotFound);
  auto tensors = MakeCheckpoint(TinyConfig(), {});
  test::Erase(tensors, "layers.2.attn.wkv.weight");
  WriteModel(dir.path(), TinyConfigJson(), tensors);
  EXPECT_THAT(Inspect({.model_dir = dir.path()}).status().message(), HasSubstr("'layers.2.attn.wkv.weight'"));
}

}  // namespace
}  // namespace dsv4
