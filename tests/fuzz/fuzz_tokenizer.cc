// The tokenizer's files and its input.
//   byte 0: kind of the rest: a tokenizer.json, a part of a valid one, a tokenizer_config.json, or text
#include <cstdint>
#include <string>
#include <string_view>

#include "dsv4/tokenizer.h"
#include "fuzz/require.h"
#include "text/support.h"
#include "text/utf8.h"

namespace {

using dsv4::fuzz::Require;
using dsv4::test::SmallFile;

// Encodes and decodes a text: the result is the text with invalid UTF-8 replaced, also from a stream decoder.
void RoundTrip(const dsv4::Tokenizer& tokenizer, std::string_view text) {
  for (const bool recognize : {true, false}) {
    const auto ids = tokenizer.Encode(text, {.recognize_added_tokens = recognize});
    const auto decoded = tokenizer.Decode(ids);
    Require(decoded.ok() && *decoded == dsv4::RepairUtf8(text));
    dsv4::StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const dsv4::TokenId id : ids) {
      const auto part = decoder.Push(id);
      Require(part.ok() && dsv4::ValidUtf8Prefix(*part) == part->size());
      streamed += *part;
    }
    Require(streamed + decoder.Finish() == *decoded);
  }
}

void Load(const std::string& json, std::string_view config = {}) {
  const auto tokenizer = dsv4::Tokenizer::FromJson(json, config);
  if (tokenizer.ok()) {
    RoundTrip(**tokenizer, "abc <think> aaaa \xF0\x9F\x99\x82 12345\n\n x");
  } else {
    Require(!tokenizer.status().message().empty() && tokenizer.status().message().find('\n') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  SmallFile file;
  switch (data[0] % 8) {
    case 0:
      Load(rest);
      return 0;
    case 1:
      file.added_tokens = rest;
      break;
    case 2:
      file.merges = rest;
      break;
    case 3:
      file.vocab.insert(file.vocab.size() - 1, ", " + rest);
      break;
    case 4:
      file.model_flags = rest;
      break;
    case 5:
      file.splits = rest;
      break;
    case 6:
      Load(file.Text(), rest);
      return 0;
    default: {
      static const auto tokenizer = dsv4::Tokenizer::FromJson(SmallFile().Text());
      RoundTrip(**tokenizer, rest);
      return 0;
    }
  }
  Load(file.Text());
  return 0;
}
