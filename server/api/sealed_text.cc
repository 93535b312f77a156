#include "server/api/sealed_text.h"

#include "server/base/base64.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kSealMark = "dsv4.1.";

}  // namespace

std::string SealText(std::string_view text) { return std::string(kSealMark) + EncodeBase64(text); }

std::optional<std::string> OpenSealedText(std::string_view sealed) {
  if (!sealed.starts_with(kSealMark)) return std::nullopt;
  return DecodeBase64(sealed.substr(kSealMark.size()));
}

}  // namespace dsv4::server
