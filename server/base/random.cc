#include "server/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

namespace dsv4::server {

std::string RandomHex(size_t digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(digits, '\0');
  for (size_t done = 0; done < digits;) {
    const ssize_t n = ::getrandom(text.data() + done, digits - done, 0);
    if (n < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    if (n > 0) done += static_cast<size_t>(n);
  }
  for (char& c : text) c = kDigits[static_cast<unsigned char>(c) & 15];
  return text;
}

Status CheckRandomSource() {
  try {
    (void)RandomHex(1);
  } catch (const std::system_error& error) {
    return Unsupported(
        "the system has no random numbers for ids (getrandom: " + std::string(std::strerror(error.code().value())) +
        "); remove the filter of system calls that refuses it");
  }
  return {};
}

}  // namespace dsv4::server
