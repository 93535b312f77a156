// The chat page at "/": one HTML file, embedded in the binary.
#pragma once

#include <string_view>

namespace dsv4::server {

std::string_view ChatPage();
// Its Content-Security-Policy: nothing from elsewhere, scripts and styles of the page only.
std::string_view ChatPagePolicy();

}  // namespace dsv4::server
