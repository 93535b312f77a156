#include "io/tensor_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/test_files.h"

namespace dsv4 {
namespace {

using test::SafetensorsBytes;
using test::TempDir;
using test::WriteBytes;
using test::WriteTensors;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

// Two shards: a, b in one.safetensors and c in two.safetensors.
class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteTensors(dir_ / "one.safetensors", {{"a", DType::kU8, {3}, "AAA"}, {"b", DType::kU8, {2}, "BB"}});
    WriteTensors(dir_ / "two.safetensors", {{"c", DType::kU8, {4}, "CCCC"}});
  }
  void WriteIndex(const std::string& map) {
    WriteBytes(dir_ / kIndex, R"({"metadata":{"total_size":9},"weight_map":)" + map + "}");
  }
  std::string Refusal() {
    const auto source = TensorSource::Open(dir_.path());
    return source.ok() ? "" : source.status().message();
  }
  TempDir dir_;
};

TEST_F(Sharded, OpensWithAndWithoutIndex) {
  for (const bool indexed : {false, true}) {
    if (indexed) WriteIndex(R"({"c":"two.safetensors","a":"one.safetensors","b":"one.safetensors"})");
    const auto source = TensorSource::Open(dir_.path());
    ASSERT_TRUE(source.ok()) << source.status().message();
    EXPECT_EQ((*source)->tensors().size(), 3U);
    EXPECT_EQ((*source)->num_bytes(), 9);
    const FileTensor* c = (*source)->Find("c");
    ASSERT_NE(c, nullptr);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(c->data), 4), "CCCC");
    EXPECT_EQ((*source)->FileOf(*c), dir_ / "two.safetensors");
    EXPECT_EQ((*source)->Find("d"), nullptr);
  }
}

TEST_F(Sharded, IndexNamesTheShardsThatCount) {
  WriteTensors(dir_ / "superseded.safetensors", {{"a", DType::kU8, {3}, "OLD"}});
  WriteIndex(R"({"c":"two.safetensors","a":"one.safetensors","b":"one.safetensors"})");
  EXPECT_EQ(Refusal(), "");
}

TEST_F(Sharded, RefusesAMissingShard) {
  WriteIndex(R"({"a":"one.safetensors","b":"one.safetensors","c":"three.safetensors"})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("three.safetensors"), HasSubstr("missing")));
}

TEST_F(Sharded, RefusesATensorThatTheShardLacks) {
  WriteIndex(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors"})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'d'"), HasSubstr("two.safetensors"), HasSubstr("lacks")));
}

TEST_F(Sharded, RefusesATensorInAnotherShard) {
  WriteIndex(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'b'"), HasSubstr("two.safetensors"), HasSubstr("one.safetensors")));
}

TEST_F(Sharded, RefusesATensorInTwoShards) {
  WriteTensors(dir_ / "three.safetensors", {{"b", DType::kU8, {2}, "bb"}});
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'b'"), HasSubstr("one.safetensors"), HasSubstr("three.safetensors")));
}

TEST_F(Sharded, RefusesAnIndexThatListsATensorTwice) {
  WriteIndex(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","c":"two.safetensors"})");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'c'"), HasSubstr("twice")));
}

TEST_F(Sharded, RefusesPathsInTheIndex) {
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", "", "a\\u0000b"}) {
    WriteIndex(std::string(R"({"a":")") + name + "\"}");
    EXPECT_THAT(Refusal(), HasSubstr("plain file name")) << name;
  }
}

TEST_F(Sharded, RefusesBrokenIndexes) {
  for (const char* text : {"", "{}", "[]", "{\"weight_map\":{}}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}",
                           "{\"weight_map\":{\"a\":\"one.safetensors\"}", "{\"metadata\":{}}"}) {
    WriteBytes(dir_ / kIndex, text);
    EXPECT_THAT(Refusal(), HasSubstr(kIndex)) << text;
  }
}

TEST_F(Sharded, NamesATruncatedShard) {
  std::filesystem::resize_file(dir_ / "two.safetensors", std::filesystem::file_size(dir_ / "two.safetensors") - 1);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("two.safetensors"), HasSubstr("'c'")));
  std::filesystem::resize_file(dir_ / "two.safetensors", 0);
  EXPECT_THAT(Refusal(), HasSubstr("two.safetensors"));
}

TEST_F(Sharded, TakesAnotherFolderIn) {
  const TempDir more;
  WriteTensors(more / "three.safetensors", {{"d", DType::kU8, {2}, "DD"}});
  WriteBytes(more / kIndex, R"({"weight_map":{"d":"three.safetensors"}})");
  auto source = TensorSource::Open(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto both = (*source)->With(more.path());
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ((*source)->tensors().size(), 3U);
  source->reset();
  EXPECT_EQ((*both)->tensors().size(), 4U);
  EXPECT_EQ((*both)->num_bytes(), 11);
  EXPECT_EQ((*both)->where(), dir_.path());
  EXPECT_EQ((*both)->FileOf(*(*both)->Find("a")), dir_ / "one.safetensors");
  const FileTensor* d = (*both)->Find("d");
  ASSERT_NE(d, nullptr);
  EXPECT_EQ((*both)->FileOf(*d), more / "three.safetensors");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(d->data), 2), "DD");
}

// Names with escapes are not views into a file.
TEST_F(Sharded, KeepsNamesOfBothFolders) {
  const TempDir more;
  const auto header = [](const std::string& name) {
    return R"({")" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  };
  WriteBytes(dir_ / "three.safetensors", SafetensorsBytes(header(R"(d\u0041)"), "1"));
  WriteBytes(more / "four.safetensors", SafetensorsBytes(header(R"(d\u0042)"), "2"));
  auto source = TensorSource::Open(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto both = (*source)->With(more.path());
  ASSERT_TRUE(both.ok()) << both.status().message();
  source->reset();
  EXPECT_NE((*both)->Find("dA"), nullptr);
  EXPECT_NE((*both)->Find("dB"), nullptr);
}

TEST_F(Sharded, RefusesATensorInBothFolders) {
  const TempDir more, empty;
  WriteTensors(more / "one.safetensors", {{"b", DType::kU8, {2}, "bb"}});
  const auto source = TensorSource::Open(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT((*source)->With(more.path()).status().message(),
              AllOf(HasSubstr("'b'"), HasSubstr(dir_ / "one.safetensors"), HasSubstr(more / "one.safetensors")));
  EXPECT_THAT((*source)->With(empty.path()).status().message(), HasSubstr(empty.path()));
}

TEST_F(Sharded, PreloadReportsEveryByteAndStops) {
  const auto source = TensorSource::Open(dir_.path());
  ASSERT_TRUE(source.ok());
  const int core = UsableCores().front().id;
  ThreadPool two(2), two_nodes({{.id = core, .node = 0}, {.id = core, .node = 1}});
  for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &two_nodes}) {
    int64_t last = 0, total = 0;
    EXPECT_TRUE((*source)->Preload(pool, [&](int64_t done, int64_t all) {
      EXPECT_GT(done, last);
      last = done;
      total = all;
      return true;
    }));
    EXPECT_EQ(last, total);
    EXPECT_GE(total, 9);
    EXPECT_FALSE((*source)->Preload(pool, [](int64_t, int64_t) { return false; }));
  }
}

TEST(TensorSource, PrefersModelSafetensorsToOthers) {
  const TempDir dir;
  WriteTensors(dir / "model.safetensors", {{"a", DType::kU8, {1}, "A"}});
  WriteTensors(dir / "reference.safetensors", {{"a", DType::kU8, {1}, "R"}});
  const auto source = TensorSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->files(), std::vector<std::string>{dir / "model.safetensors"});
}

TEST(TensorSource, NamesFoldersWithoutCheckpoint) {
  const TempDir dir;
  EXPECT_THAT(TensorSource::Open(dir.path()).status().message(), HasSubstr(dir.path()));
  EXPECT_EQ(TensorSource::Open(dir / "nothing").status().code(), StatusCode::kNotFound);
  WriteBytes(dir / "file", "x");
  EXPECT_EQ(TensorSource::Open(dir / "file").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace dsv4
