// Regular expressions (the "pattern" of a schema) for the text of a JSON string.
//
// A grammar writes the characters of a pattern as they are. So they cannot include characters that JSON escapes: the
// quote, the backslash, control characters. The grammar library leaves such characters out if the pattern has a choice.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

// Returns true if a JSON string can follow the pattern. False if each text of the pattern has a character that JSON
// escapes, or if the pattern looks ahead or behind. True if the pattern is not valid: the library reports the error.
bool HoldsInJson(std::string_view pattern);

// Returns the same pattern in ASCII. From other patterns the library makes grammars that write characters which JSON
// escapes.
std::string AsciiPattern(std::string_view pattern);

}  // namespace dsv4::server
