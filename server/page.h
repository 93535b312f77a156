// The chat page at "/": one HTML file, embedded in the binary.
#pragma once

#include <string_view>

namespace dsv4::server {

std::string_view ChatPage();
// Its Content-Security-Policy: nothing from elsewhere, and by their hashes the script and the style that stand in it.
std::string_view ChatPagePolicy();

}  // namespace dsv4::server
