// JsonReader: a pull reader for the large, flat JSON of checkpoints (a safetensors header, a shard index). It builds no
// tree: strings without escapes are views into the text, so 300,000 tensors cost no allocation each.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace dsv4 {

// Every function skips white space first and returns false when the text is not what was asked for; the reader then
// stands at the place where the text broke.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  size_t offset() const { return at_; }

  // The character `c`, if it comes next.
  bool Consume(char c);

  // A string. `out` is a view into the text, or into `unescaped` when the string holds escapes. Escapes beyond ASCII
  // are refused: no name that we read needs them.
  bool ReadString(std::string_view& out, std::deque<std::string>& unescaped);

  // An integer of 0 .. 2^63 - 1 without sign, fraction or exponent.
  bool ReadCount(int64_t& out);

  // Any value, `max_depth` levels deep at most.
  bool SkipValue(int max_depth = 64);

  // Nothing but white space is left.
  bool AtEnd();

 private:
  void SkipSpace();
  bool SkipString();
  bool SkipWord();

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace dsv4
