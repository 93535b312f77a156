#include "dsv4/stop_strings.h"

#include <algorithm>
#include <utility>

namespace dsv4 {

// Every stop string has its own Knuth-Morris-Pratt automaton: `state` is how many of its bytes the text ends with.
Result<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (std::string& stop : stops) {
    if (stop.empty()) return InvalidArgument("a stop string is empty");
    Pattern pattern{.text = std::move(stop), .fallback = {0}};
    for (size_t i = 1; i < pattern.text.size(); ++i) {
      size_t border = pattern.fallback[i - 1];
      while (border > 0 && pattern.text[i] != pattern.text[border]) border = pattern.fallback[border - 1];
      pattern.fallback.push_back(pattern.text[i] == pattern.text[border] ? border + 1 : 0);
    }
    matcher.patterns_.push_back(std::move(pattern));
  }
  return matcher;
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped()) return {};
  for (const char c : text) {
    held_.push_back(c);
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      while (p.state > 0 && p.text[p.state] != c) p.state = p.fallback[p.state - 1];
      if (p.text[p.state] == c) ++p.state;
      if (p.state < p.text.size()) continue;
      if (!stopped() || p.text.size() > matched().size()) matched_ = static_cast<int>(i);
    }
    if (stopped()) {
      held_.resize(held_.size() - matched().size());
      return std::exchange(held_, {});
    }
  }
  size_t undecided = 0;
  for (const Pattern& p : patterns_) undecided = std::max(undecided, p.state);
  std::string certain = held_.substr(0, held_.size() - undecided);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace dsv4
