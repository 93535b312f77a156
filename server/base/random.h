// Random numbers that no client can predict, for ids that grant access.
#pragma once

#include <string>

#include "dsv4/status.h"

namespace dsv4::server {

// Returns `digits` hexadecimal digits of the system's random source. Earlier digits say nothing about later ones.
// Throws std::system_error if the system has no such source.
std::string RandomHex(size_t digits);

// Returns an error if RandomHex would throw. A server checks it before it starts.
Status CheckRandomSource();

}  // namespace dsv4::server
