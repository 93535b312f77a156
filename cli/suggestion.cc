#include "suggestion.h"

#include <algorithm>
#include <string_view>

namespace dsv4::cli {

namespace {

// Edit distance with swaps of neighbours, for suggestions.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string Suggestion(const std::string& wrong, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = wrong.size() / 3 + 2;
  for (const std::string& name : names) {
    const size_t distance = name.starts_with(wrong) ? 1 : Distance(wrong, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : "; did you mean " + best + "?";
}

}  // namespace dsv4::cli
