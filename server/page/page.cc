#include "server/page/page.h"

#include <dsv4_page.inc>

namespace dsv4::server {

std::string_view ChatPage() { return kChatPage; }

std::string_view ChatPagePolicy() {
  return "default-src 'none'; style-src " DSV4_PAGE_STYLE_HASH "; script-src " DSV4_PAGE_SCRIPT_HASHES
         "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
         "; require-trusted-types-for 'script'; trusted-types dompurify";
}

}  // namespace dsv4::server
