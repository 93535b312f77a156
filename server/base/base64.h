// Base64 (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

std::string EncodeBase64(std::string_view bytes);

// Decodes base64 up to the first character that is not part of its alphabet. Skips line ends.
std::string DecodeBase64(std::string_view text);

}  // namespace dsv4::server
