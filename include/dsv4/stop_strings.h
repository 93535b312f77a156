// Stop strings: ends a streamed text before the first occurrence of one of several strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

class DSV4_API StopMatcher {
 public:
  // `stops` may be empty. Error: kInvalidArgument (one of the strings is empty).
  static Result<StopMatcher> Create(std::vector<std::string> stops);

  // Appends `text` to the stream. Returns the part of the stream, after the parts returned before, that cannot belong
  // to a stop string. Holds back a suffix that may be the beginning of one. The stream stops at the stop string that is
  // complete first (of several that end at the same byte, the longest). The stop string and the text after it are never
  // returned. The result does not depend on how the text is split between calls.
  std::string Push(std::string_view text);

  // Ends the stream and returns the text that was held back.
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }

  // Returns the stop string that was found. Requires stopped().
  const std::string& matched() const { return patterns_[static_cast<size_t>(matched_)].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [i]: length of the longest proper border of text[0, i]
    size_t state = 0;              // length of the longest prefix of `text` that the stream ends with
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace dsv4
