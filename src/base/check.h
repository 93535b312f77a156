// Checks for mistakes of the programmer. They are always on, and abort with the condition, the values and the source
// line. Expected failures (files, requests, memory) are Status values instead.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/str.h"

namespace dsv4::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what, const std::string& detail) {
  std::fprintf(stderr, "dsv4: internal error: %s:%d: check failed: %s %s\n", file, line, what, detail.c_str());
  std::abort();
}

}  // namespace dsv4::internal

#define DSV4_CHECK(cond, ...)                                                                                  \
  do {                                                                                                         \
    if (!(cond)) [[unlikely]]                                                                                  \
      ::dsv4::internal::CheckFailed(__FILE__, __LINE__, #cond, ::dsv4::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

#define DSV4_CHECK_EQ(a, b) DSV4_CHECK((a) == (b), "(", (a), " vs ", (b), ")")

#ifdef NDEBUG
#define DSV4_DCHECK(cond, ...) \
  do {                         \
  } while (false)
#else
#define DSV4_DCHECK(cond, ...) DSV4_CHECK(cond __VA_OPT__(, ) __VA_ARGS__)
#endif
