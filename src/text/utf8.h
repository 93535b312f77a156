// UTF-8, one step at a time. Broken bytes are treated as Unicode recommends: each maximal part that could begin a
// character is one error (Python's errors="replace", Rust's from_utf8_lossy).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum class Kind : uint8_t {
    kCharacter,  // `code`, in `length` bytes
    kBroken,     // the next `length` bytes belong to no character
    kCut,        // the rest of the text, `length` bytes, is the beginning of a character
  };
  Kind kind;
  uint32_t code;
  size_t length;
};

// The step at the start of `text`, which must not be empty.
Utf8Step NextUtf8(std::string_view text);

// Returns the code point at the start of `text` (valid UTF-8, not empty). Sets *length to its number of bytes.
inline uint32_t DecodeValidUtf8(std::string_view text, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) {
    *length = 1;
    return lead;
  }
  if (lead < 0xE0) {
    *length = 2;
    return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  }
  if (lead < 0xF0) {
    *length = 3;
    return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  *length = 4;
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

// Appends a code point (up to U+10FFFF, no surrogate).
void AppendUtf8(uint32_t code, std::string* out);

// Offset of the first broken byte; text.size() if there is none.
size_t ValidUtf8Prefix(std::string_view text);

// Appends the whole characters of *held to *out, with U+FFFD for broken parts. An incomplete character at the end stays
// in *held.
void DrainUtf8(std::string* held, std::string* out);

// Returns `text` with U+FFFD for broken parts, an incomplete end included.
std::string RepairUtf8(std::string_view text);

}  // namespace dsv4
