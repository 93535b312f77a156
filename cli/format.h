// Formats numbers and tables for people.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv4/types.h"

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

// Returns "1,048,576".
inline std::string FormatCount(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && out != "-") out += ',';
    out += digits[i];
  }
  return out;
}

// Returns "1 2 3".
inline std::string FormatIds(std::span<const TokenId> ids) {
  std::string out;
  for (const TokenId id : ids) {
    if (!out.empty()) out += ' ';
    out += std::to_string(id);
  }
  return out;
}

// Returns rows with aligned columns, two spaces apart. Columns with `right` are aligned to the right.
inline std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right) {
  std::vector<size_t> widths(right.size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += right[c] ? padding + row[c] : row[c] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

// Returns "a, b, c".
inline std::string FormatList(std::span<const std::string> items) {
  std::string out;
  for (const std::string& item : items) {
    if (!out.empty()) out += ", ";
    out += item;
  }
  return out;
}

}  // namespace dsv4::cli
