// encrypted_content of reasoning and compaction items: a text that clients carry and only this program reads. It is
// encoded, not encrypted: it holds nothing that its client may not read.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4::server {

std::string SealText(std::string_view text);

// Returns nullopt for the text of another service.
std::optional<std::string> OpenSealedText(std::string_view sealed);

}  // namespace dsv4::server
