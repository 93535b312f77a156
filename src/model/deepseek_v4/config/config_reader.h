// Reads fields of config.json by any of their names, and checks every value.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/str.h"
#include "dsv4/status.h"

namespace dsv4::deepseek_v4 {

using Names = std::initializer_list<std::string_view>;  // spellings of one field, the official one first

// The value as JSON text, shortened for a message.
inline std::string Shown(const Json& value) {
  std::string s = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return s.size() <= 80 ? s : s.substr(0, 77) + "...";
}

// Reads fields of one JSON document and keeps the first error. After an error every read returns zero.
class ConfigReader {
 public:
  ConfigReader(const Json& root, std::string_view what) : root_(root), what_(what) {}

  const Status& status() const { return status_; }

  void Fail(std::string message) {
    if (status_.ok()) status_ = DataLoss(StrCat(what_, ": ", message));
  }
  void Refuse(std::string_view field, const Json& value, std::string_view accepted) {
    if (status_.ok()) {
      status_ = Unsupported(StrCat(what_, ": ", field, " is ", Shown(value), "; accepted: ", accepted));
    }
  }

  // The field by any of its names; "a.b" is field b of object a. Null counts as absent. If two names have different
  // values, that is an error. `name`, if given, receives the name that was found, or the first.
  const Json* Find(Names names, std::string_view* name = nullptr) {
    const Json* found = nullptr;
    std::string_view found_name = *names.begin();
    for (const std::string_view one : names) {
      const Json* value = FindPath(one);
      if (value == nullptr || value->is_null()) continue;
      if (found == nullptr) {
        found = value;
        found_name = one;
      } else if (*found != *value) {
        Fail(StrCat(found_name, " is ", Shown(*found), " but ", one, " is ", Shown(*value)));
      }
    }
    if (name != nullptr) *name = found_name;
    return found;
  }

  // The value at one path; null: absent.
  const Json* At(std::string_view path) const { return FindPath(path); }
  bool IsNull(std::string_view path) const {
    const Json* value = FindPath(path);
    return value != nullptr && value->is_null();
  }

  int64_t Int(Names names, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) {
    std::string_view name;
    const Json* value = Require(names, fallback.has_value(), &name);
    if (value == nullptr) return fallback.value_or(0);
    return IntOf(name, *value, low, high);
  }

  int64_t IntOf(std::string_view field, const Json& value, int64_t low, int64_t high) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    const int64_t n = fits ? value.get<int64_t>() : 0;
    if (!fits || n < low || n > high) {
      Fail(StrCat(field, " is ", Shown(value), "; accepted: an integer from ", low, " to ", high));
      return 0;
    }
    return n;
  }

  // A number in [low, high].
  double Number(Names names, double low, double high, std::optional<double> fallback = {}) {
    std::string_view name;
    const Json* value = Require(names, fallback.has_value(), &name);
    if (value == nullptr) return fallback.value_or(0);
    const double x = value->is_number() ? value->get<double>() : std::nan("");
    if (!(x >= low && x <= high)) {
      Fail(StrCat(name, " is ", Shown(*value), "; accepted: a number from ", low, " to ", high));
      return 0;
    }
    return x;
  }

  // A field for which the code supports one value; it may be absent.
  void Expect(Names names, const Json& accepted) {
    std::string_view name;
    const Json* value = Find(names, &name);
    if (value != nullptr && *value != accepted) Refuse(name, *value, Shown(accepted));
  }

 private:
  const Json* FindPath(std::string_view path) const {
    const Json* at = &root_;
    while (true) {
      const size_t dot = path.find('.');
      if (!at->is_object()) return nullptr;
      const auto it = at->find(std::string(path.substr(0, dot)));
      if (it == at->end()) return nullptr;
      at = &*it;
      if (dot == std::string_view::npos) return at;
      path.remove_prefix(dot + 1);
    }
  }

  const Json* Require(Names names, bool optional, std::string_view* name) {
    const Json* value = Find(names, name);
    if (value == nullptr && !optional) {
      std::string others;
      for (const std::string_view other : names) {
        if (other != *names.begin()) others += StrCat(others.empty() ? " (also read as " : ", ", other);
      }
      if (!others.empty()) others += ")";
      Fail(StrCat(*names.begin(), others, " is missing"));
    }
    return value;
  }

  const Json& root_;
  std::string_view what_;
  Status status_;
};

}  // namespace dsv4::deepseek_v4
