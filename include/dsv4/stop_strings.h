// Stop strings: ends a streamed text where one of several strings occurs, and holds back what might become
// one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

class StopMatcher {
 public:
  // Any number of strings, also none. Error: kInvalidArgument for an empty one.
  static Result<StopMatcher> Create(std::vector<std::string> stops);

  // Text that is certain not to belong to a stop string. The text ends where the first stop string is
  // complete (of several that end there, the longest); it and what follows are never handed out. How the text
  // is split between calls makes no difference.
  std::string Push(std::string_view text);

  // The end of the text: what was held back.
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }

  // The stop string that was found; only when stopped().
  const std::string& matched() const { return patterns_[static_cast<size_t>(matched_)].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [i]: length of the longest proper border of text[0, i]
    size_t state = 0;              // how much of it the text read so far ends with
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace dsv4
