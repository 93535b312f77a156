// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4::server {

std::array<uint8_t, 32> Sha256(std::string_view bytes);

// The first `digits` of its 64 hexadecimal digits.
std::string Sha256Hex(std::string_view bytes, size_t digits = 64);

}  // namespace dsv4::server
