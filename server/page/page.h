// The chat page at "/": one HTML file, embedded in the binary.
#pragma once

#include <string_view>

namespace dsv4::server {

std::string_view ChatPage();
// Its Content-Security-Policy: nothing from elsewhere, by their hashes the scripts and the style that stand in it, and
// no text becomes markup but through DOMPurify.
std::string_view ChatPagePolicy();

}  // namespace dsv4::server
