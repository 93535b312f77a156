// Tags of DSML, the markup of tool calls, read tolerantly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

enum class Match : uint8_t { kNo, kMaybe, kYes };  // kMaybe: the text ends too early

// A tag with the marker: "<｜DSML｜WORD ATTRIBUTES>" or "</｜DSML｜WORD>". V4.1's space after the marker is allowed.
struct DsmlTag {
  bool closes = false;
  std::string word;
  std::optional<std::string> name;    // attribute
  std::optional<std::string> string;  // attribute, in lower case
  size_t size = 0;                    // bytes
};

// Whether `text` begins with a tag. Attributes may come in any order, in double or single quotes; "type" is ignored.
// Other attributes, repeated ones, quotes that do not end in the same line, and names of more than 1,024 bytes are no
// tag.
Match ReadDsmlTag(std::string_view text, DsmlTag* tag);

// Whether `text` begins a block of calls: a call's tag, or a wrapper with a call's tag after it. The wrapper may be
// misspelt, but it is short and in one line. *call: the byte at which the call's tag begins.
Match ReadBlockBegin(std::string_view text, size_t* call);

// Whether `text` begins with the tag of a parameter, a call or a block of calls, complete or not.
Match BeginsKnownTag(std::string_view text);

// White space between tags.
size_t SkipBlanks(std::string_view text, size_t at);

}  // namespace dsv4
