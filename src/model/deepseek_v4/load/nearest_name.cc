#include "model/deepseek_v4/load/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/str.h"
#include "model/deepseek_v4/schema/bind_names.h"
#include "model/deepseek_v4/schema/other_tensors.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr size_t kMostCharacters = 200, kMostCompared = 100'000;  // hostile files have more
constexpr size_t kComponent = 8;  // another component counts like this many other characters

// The fewest characters to insert, remove or replace in `a` to get `b`; `limit` if that is at least `limit`.
size_t EditDistance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0], least = row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
      least = std::min(least, row[j + 1]);
    }
    if (least >= limit) return limit;
  }
  return std::min(row[b.size()], limit);
}

// Components that `a` or `b` has and the other has not in the same place, counted from the front and from the back.
size_t ComponentsApart(std::string_view a, std::string_view b) {
  const auto count = [](std::string_view s) { return 1 + static_cast<size_t>(std::count(s.begin(), s.end(), '.')); };
  const size_t most = std::max(count(a), count(b)), least = std::min(count(a), count(b));
  const auto front = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const auto back = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first;
  const size_t same = static_cast<size_t>(std::count(a.begin(), front, '.') + std::count(a.rbegin(), back, '.'));
  return most - std::min(same, least);
}

// The names of all tensors, of matrices also without an ending.
std::unordered_set<std::string> KnownNames(const Config& config) {
  std::unordered_set<std::string> known;
  Weights shapes;
  MakeWeights(config, shapes, [&](const WeightRef& ref, const WeightOwner&, const Shape&) {
    if (!ref.in_files()) return true;
    known.insert(ref.Name());
    known.insert(ref.Stem());
    if (ref.expert == 0) {
      for (const StackedExperts& stack : kStackedExperts) known.insert(StrCat(ref.Block(), stack.name, ".weight"));
    }
    return true;
  });
  return known;
}

bool IsKnown(const std::unordered_set<std::string>& known, std::string_view name) {
  const std::string_view matrix = MatrixOfScale(name);
  return known.contains(std::string(name)) || (!matrix.empty() && known.contains(StrCat(matrix, ".weight")));
}

}  // namespace

int NearestUnknown(const Config& config, std::string_view missing, const std::vector<std::string_view>& names) {
  const std::unordered_set<std::string> known = KnownNames(config);
  int nearest = -1;
  size_t least = 100 * kMostCharacters, compared = 0;
  for (size_t i = 0; i < names.size() && compared < kMostCompared; ++i) {
    const bool left_out = config.draft.stages == 0 && IsDraftName(names[i]);
    if (left_out || names[i].size() > kMostCharacters || IsUnusedValue(names[i]) || IsKnown(known, names[i])) continue;
    ++compared;
    const size_t apart = kComponent * ComponentsApart(missing, names[i]);
    const size_t distance = apart < least ? apart + EditDistance(missing, names[i], least - apart) : least;
    if (distance < least) least = distance, nearest = static_cast<int>(i);
  }
  return nearest;
}

}  // namespace dsv4::deepseek_v4
