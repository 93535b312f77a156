// Regular expressions ("pattern" of a schema) that hold the text inside a JSON string.
//
// A grammar made of a pattern writes its characters as they are, so what JSON escapes - the quote, the backslash,
// control characters - cannot be among them. The grammar library leaves such characters out wherever there is a choice.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

// Whether a JSON string can be held to the pattern: false where each text of it has a character that JSON escapes, and
// where the pattern looks ahead or behind. True for what is no pattern: the library says what is wrong with it.
bool HoldsInJson(std::string_view pattern);

// The same pattern in ASCII: from others the library makes grammars that write characters which JSON escapes.
std::string AsciiPattern(std::string_view pattern);

}  // namespace dsv4::server
