// JsonReader: a pull reader for the large, flat JSON of checkpoints (a safetensors header, a shard index). It builds no
// tree: strings without escapes are views into the text, so 300,000 tensors cost no allocation each.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace dsv4 {

// Every function skips white space first. It returns false if the text is not the requested value; offset() is then the
// position of the mistake.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  size_t offset() const { return at_; }

  // Consumes the character `c` if it is next.
  bool Consume(char c);

  // Reads a string. `out` is a view into the text, or into `unescaped` if the string has escapes. Refuses escapes
  // beyond ASCII: no name that we read needs them.
  bool ReadString(std::string_view& out, std::deque<std::string>& unescaped);

  // Reads an integer of 0 .. 2^63 - 1 without sign, fraction or exponent.
  bool ReadCount(int64_t& out);

  // Skips any value with at most `max_depth` levels.
  bool SkipValue(int max_depth = 64);

  // Whether only white space is left.
  bool AtEnd();

 private:
  void SkipSpace();
  bool SkipString();
  bool SkipWord();

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace dsv4
