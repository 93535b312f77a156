// Numbers for people.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace dsv4::cli {

inline std::string FormatFixed(double value, int digits) {
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed, digits).ptr;
  return {buffer, end};
}

inline std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return FormatFixed(value, unit == 0 ? 0 : value < 10 ? 2 : 1) + " " + kUnits[unit];
}

// 1,048,576
inline std::string FormatCount(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

}  // namespace dsv4::cli
