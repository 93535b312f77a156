// Base64 (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace dsv4::server {

// The bytes of base64, up to the first character that is none. Line ends are passed over.
std::string DecodeBase64(std::string_view text);

}  // namespace dsv4::server
