#include "text/unicode.h"

#include <algorithm>
#include <memory>

namespace dsv4 {

CharClassTable::CharClassTable() {
  classes_.fill(CharClass::kOther);
  for (const CharRange& range : CharRanges()) {
    std::fill(classes_.begin() + range.first, classes_.begin() + range.last + 1, range.char_class);
  }
}

const CharClassTable& CharClassTable::Get() {
  static const std::unique_ptr<const CharClassTable> table(new CharClassTable);
  return *table;
}

}  // namespace dsv4
