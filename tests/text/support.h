// Shared by the text tests: the real V4 tokenizer, if it is available, and a small one made in memory.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "dsv4/tokenizer.h"
#include "text/byte_level.h"
#include "text/json_value.h"
#include "text/pre_tokenizer.h"

namespace dsv4::test {

inline std::string V4Dir() { return DSV4_SOURCE_DIR "/../shared/data/tokenizer-v4"; }

inline bool HaveV4() { return std::filesystem::exists(std::filesystem::path(V4Dir()) / "tokenizer.json"); }

// Loaded once; only when HaveV4().
inline const Tokenizer& V4() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(V4Dir());
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
      std::abort();
    }
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

// An empty folder of this process, removed with the object.
class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / ("dsv4_text_test_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

#define SKIP_WITHOUT_V4() \
  if (!::dsv4::test::HaveV4()) GTEST_SKIP() << "no V4 tokenizer in " << ::dsv4::test::V4Dir()

inline std::string Quote(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(text, &out);
  return out + "\"";
}

// The parts of a small tokenizer.json; change one to see it refused. The vocabulary: the 256 bytes in the
// order of their values (ids 0 .. 255), "ab" 256, "abc" 257, "aa" 258, "aaaa" 259, " a" 260, then the added
// tokens.
struct SmallFile {
  std::string version = R"("1.0")";
  std::string truncation = "null";
  std::string padding = "null";
  std::string added_tokens = R"([
    {"id": 261, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 262, "content": "<think>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false},
    {"id": 263, "content": "<think>>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false},
    {"id": 264, "content": "k><s", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}])";
  std::string normalizer = R"({"type": "Sequence", "normalizers": []})";
  std::string splits = Split(kNumberPattern) + ", " + Split(kCjkPattern) + ", " + Split(kWordPattern);
  std::string
      byte_level = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})";
  std::string
      post_processor = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})";
  std::string decoder = R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
  std::string model_type = R"("BPE")";
  std::string model_flags =
      R"("dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
         "fuse_unk": false, "byte_fallback": false)";
  std::string vocab = Vocab();
  std::string merges = R"(["a b", "ab c", "a a", "aa aa", "Ġ a"])";
  std::string extra;  // more members of the file

  static std::string Split(std::string_view pattern) {
    return R"({"type": "Split", "pattern": {"Regex": )" + Quote(pattern) +
           R"(}, "behavior": "Isolated", "invert": false})";
  }

  static std::string Vocab() {
    std::string out = "{";
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      out += Quote(SymbolsOfBytes(std::string_view(&byte, 1))) + ": " + std::to_string(b) + ", ";
    }
    return out + R"("ab": 256, "abc": 257, "aa": 258, "aaaa": 259, "Ġa": 260})";
  }

  std::string Text() const {
    return R"({"version": )" + version + R"(, "truncation": )" + truncation + R"(, "padding": )" + padding +
           R"(, "added_tokens": )" + added_tokens + R"(, "normalizer": )" + normalizer +
           R"(, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + splits + ", " + byte_level +
           R"(]}, "post_processor": )" + post_processor + R"(, "decoder": )" + decoder + R"(, "model": {"type": )" +
           model_type + ", " + model_flags + R"(, "vocab": )" + vocab + R"(, "merges": )" + merges + "}" + extra + "}";
  }
};

}  // namespace dsv4::test
