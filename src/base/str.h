// Text assembly for messages: StrCat("tensor ", name, ": ", n, " bytes").
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace dsv4 {

namespace internal {

inline void AppendPiece(std::string& out, std::string_view s) { out.append(s); }
inline void AppendPiece(std::string& out, char c) { out.push_back(c); }

// A template, so that a string literal never decays to it.
template <std::same_as<bool> T>
void AppendPiece(std::string& out, T b) {
  out.append(b ? "true" : "false");
}

template <typename T>
requires((std::integral<T> || std::floating_point<T>)&&!std::same_as<T, char> &&
         !std::same_as<T, bool>) void AppendPiece(std::string& out, T value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  out.append(buffer, static_cast<size_t>(end - buffer));
}

}  // namespace internal

// Joins strings, characters, booleans, integers and floating-point numbers (shortest exact form).
template <typename... Pieces>
std::string StrCat(const Pieces&... pieces) {
  std::string out;
  (internal::AppendPiece(out, pieces), ...);
  return out;
}

}  // namespace dsv4
