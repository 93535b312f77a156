// The chat page at "/": one HTML file, embedded in the program.
#pragma once

#include <string_view>

namespace dsv4::server {

std::string_view ChatPage();
// The Content-Security-Policy of the page. Nothing is loaded from elsewhere. Only the scripts and the style in the page
// are allowed, by their hashes. Only DOMPurify may turn text into markup.
std::string_view ChatPagePolicy();

}  // namespace dsv4::server
