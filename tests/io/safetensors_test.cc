#include "io/safetensors.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/tensor_file.h"
#include "io/tensor_source.h"
#include "io/test_files.h"

namespace dsv4 {
namespace {

using test::SafetensorsBytes;
using test::TempDir;
using test::WriteBytes;
using ::testing::HasSubstr;

Result<SafetensorsHeader> Parse(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "FILE");
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsKeysAndDataInAnyOrder) {
  const std::string bytes = SafetensorsBytes(
      R"( {"b": {"data_offsets":[4,12], "shape":[2, 1 ,1], "dtype":"F32"},
           "__metadata__": {"format":"pt","\u00e9":[{"x":null},-1.5e3]},
           "a\u002fb\"": {"shape":[],"dtype":"F32","data_offsets":[0,4]},
           "none": {"shape":[0,7],"dtype":"I64","data_offsets":[12,12]}}   )",
      std::string("\0\0\x80?ABCDEFGH", 12));
  const auto header = Parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 3U);
  const FileTensor& b = header->tensors[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.shape, (Shape{2, 1, 1}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.data), 8), "ABCDEFGH");
  const FileTensor& a = header->tensors[1];
  EXPECT_EQ(a.name, "a/b\"");
  EXPECT_EQ(a.shape, Shape{});
  float one = 0;
  std::memcpy(&one, a.data, 4);
  EXPECT_EQ(one, 1.0f);
  EXPECT_EQ(header->tensors[2].num_bytes, 0);
}

TEST(Safetensors, KeepsTypesThatItDoesNotRead) {
  const std::string bytes = SafetensorsBytes("{\"x\":" + Entry("F8_E5M2", "[3]", "[0,3]") + "}", "abc");
  const auto header = Parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_FALSE(header->tensors[0].dtype_known);
  EXPECT_EQ(header->tensors[0].dtype_name, "F8_E5M2");
}

TEST(Safetensors, AcceptsPaddingBetweenTensors) {
  const auto header = Parse(SafetensorsBytes(
      "{\"x\":" + Entry("U8", "[2]", "[0,2]") + ",\"y\":" + Entry("U8", "[2]", "[64,66]") + "}", std::string(80, 'x')));
  EXPECT_TRUE(header.ok()) << header.status().message();
}

struct Refusal {
  const char* name;
  std::string header;
  int64_t data_bytes;
  std::vector<std::string> says;
};

class SafetensorsRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsRefuses, NamingTheTensor) {
  const Refusal& r = GetParam();
  const auto header = Parse(SafetensorsBytes(r.header, std::string(static_cast<size_t>(r.data_bytes), 'x')));
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(header.status().message(), HasSubstr("'FILE'"));
  for (const std::string& part : r.says) EXPECT_THAT(header.status().message(), HasSubstr(part));
  EXPECT_THAT(header.status().message(), Not(HasSubstr("\n")));
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"some.name\":" + Entry(dtype, shape, offsets) + "}";
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsRefuses,
    ::testing::Values(
        Refusal{"OffsetBeyondFile", One("U8", "[9]", "[0,9]"), 8, {"some.name", "bytes 0 to 9", "8 bytes"}},
        Refusal{"HugeOffset", One("U8", "[9]", "[0,9223372036854775807]"), 8, {"some.name"}},
        Refusal{"OffsetTooLong", One("U8", "[9]", "[0,9223372036854775808]"), 8, {"broken"}},
        Refusal{"NegativeOffset", One("U8", "[9]", "[-1,8]"), 8, {"broken"}},
        Refusal{"OffsetsReversed", One("U8", "[4]", "[8,4]"), 8, {"some.name"}},
        Refusal{"LengthMismatch", One("F32", "[2,2]", "[0,8]"), 8, {"some.name", "[2, 2]", "8 bytes"}},
        Refusal{"ShapeOverflow", One("F32", "[4611686018427387904,4]", "[0,0]"), 8, {"some.name"}},
        Refusal{"ShapeOverflowWithZero", One("F32", "[0,4]", "[0,4]"), 8, {"some.name"}},
        Refusal{"RankFive", One("U8", "[1,1,1,1,8]", "[0,8]"), 8, {"some.name", "4 axes"}},
        Refusal{"FractionalDim", One("U8", "[8.0]", "[0,8]"), 8, {"broken"}},
        Refusal{"LeadingZero", One("U8", "[08]", "[0,8]"), 8, {"broken"}},
        Refusal{"Overlap",
                "{\"one\":" + Entry("U8", "[6]", "[0,6]") + ",\"two\":" + Entry("U8", "[4]", "[5,9]") + "}",
                9,
                {"'one'", "'two'", "overlap"}},
        Refusal{"OverlapInside",
                "{\"one\":" + Entry("U8", "[9]", "[0,9]") + ",\"two\":" + Entry("U8", "[0]", "[2,2]") +
                    ",\"three\":" + Entry("U8", "[1]", "[3,4]") + "}",
                9,
                {"'one'", "'three'", "overlap"}},
        Refusal{"SameRange",
                "{\"one\":" + Entry("U8", "[6]", "[0,6]") + ",\"two\":" + Entry("U8", "[6]", "[0,6]") + "}",
                9,
                {"'one'", "'two'", "overlap"}},
        Refusal{"DuplicateKey",
                "{\"one\":" + Entry("U8", "[1]", "[0,1]") + ",\"one\":" + Entry("U8", "[1]", "[1,2]") + "}",
                9,
                {"'one'", "twice"}},
        Refusal{"DuplicateKeyEscaped",
                "{\"one\":" + Entry("U8", "[1]", "[0,1]") + ",\"\\u006fne\":" + Entry("U8", "[1]", "[1,2]") + "}",
                9,
                {"'one'", "twice"}},
        Refusal{"DuplicateField", R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"'x'"}},
        Refusal{"UnknownField", R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"y":1}})", 1, {"'x'"}},
        Refusal{"NoDtype", R"({"x":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'x'", "dtype"}},
        Refusal{"NoShape", R"({"x":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'x'", "shape"}},
        Refusal{"NoOffsets", R"({"x":{"dtype":"U8","shape":[1]}})", 1, {"'x'", "data_offsets"}},
        Refusal{"ControlCharacterInName", R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"name"}},
        Refusal{"NameNotAscii", "{\"\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, {"name"}},
        Refusal{"EmptyName", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"name"}},
        Refusal{"NotJson", "hello world", 0, {"broken"}}, Refusal{"Empty", "", 0, {"broken"}},
        Refusal{"Array", "[]", 0, {"broken"}}, Refusal{"TrailingText", "{} {}", 0, {"broken"}},
        Refusal{"TrailingComma", "{\"x\":" + Entry("U8", "[1]", "[0,1]") + ",}", 1, {"broken"}},
        Refusal{"DeepMetadata", "{\"__metadata__\":" + std::string(100000, '[') + "}", 0, {"broken"}}),
    [](const auto& p) { return std::string(p.param.name); });

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = SafetensorsBytes(
      "{\"one\":" + Entry("F32", "[2]", "[0,8]") + ",\"two\":" + Entry("BF16", "[2,2]", "[8,16]") + "}",
      std::string(16, 'x'));
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(Parse(whole.substr(0, length)).ok()) << length << " of " << whole.size() << " bytes";
  }
}

TEST(Safetensors, RefusesLyingHeaderLengths) {
  for (const uint64_t length : {uint64_t{9}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::string bytes(16, ' ');
    std::memcpy(bytes.data(), &length, 8);
    const auto header = Parse(bytes);
    ASSERT_FALSE(header.ok());
    EXPECT_THAT(header.status().message(), HasSubstr("header"));
  }
}

TEST(TensorFile, WritesWhatTheReaderReads) {
  const TempDir dir;
  const std::vector<float> f32 = {1.5f, -2.0f, 3.25f, 0.0f, 1e30f, -0.0f};
  const std::vector<int32_t> i32 = {7, -7};
  const std::vector<NamedTensor> tensors = {{"logits", {2, 3}, std::span<const float>(f32)},
                                            {"odd \"name\\", {2}, std::span<const int32_t>(i32)}};
  const Status status = WriteTensorFile(dir / "out.safetensors", tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto source = TensorSource::OpenFile(dir / "out.safetensors");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const FileTensor* logits = (*source)->Find("logits");
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->shape, (Shape{2, 3}));
  EXPECT_EQ(std::memcmp(logits->data, f32.data(), 24), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(logits->data) % 8, 0U) << "data starts at a multiple of 8";
  const FileTensor* odd = (*source)->Find("odd \"name\\");
  ASSERT_NE(odd, nullptr);
  EXPECT_EQ(odd->dtype, DType::kI32);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "no temporary file stays";
}

TEST(TensorFile, RefusesShapesThatDoNotFit) {
  const TempDir dir;
  const std::vector<float> f32(5);
  const std::vector<NamedTensor> tensors = {{"logits", {2, 3}, std::span<const float>(f32)}};
  const Status status = WriteTensorFile(dir / "out.safetensors", tensors);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'logits'"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out.safetensors"));
}

TEST(TensorFile, NamesAFolderThatIsNotThere) {
  const std::vector<float> f32(1);
  const std::vector<NamedTensor> tensors = {{"x", {1}, std::span<const float>(f32)}};
  const Status status = WriteTensorFile("/nonexistent-folder/out.safetensors", tensors);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent-folder/out.safetensors"));
}

}  // namespace
}  // namespace dsv4
