// Turns parts of messages into text, for all APIs. An agent sends its whole history with every request. So a part that
// the model cannot read (images, documents, blocks of other services) becomes a short note. An error would repeat with
// every request.
#pragma once

#include <string>
#include <string_view>

#include "server/base/json.h"

namespace dsv4::server {

struct PartText {
  std::string text;
  bool is_note = false;  // it replaces a part that the model does not get
};

// Returns a note, as in "[image left out: this model reads text]".
std::string LeftOut(std::string_view what);

// Reads a part of a list: a string or an object with a "type". Also reads text documents and files, including base64.
// Throws ApiError 400 if a part has no type or a text part has no text.
PartText ReadPart(const Json& part, const std::string& path);

// Reads a string, null, or a list of parts, joined by `between`. `only_notes`: there are parts, but the model can read
// none.
std::string ReadParts(const Json& content, const std::string& path, std::string_view between = "\n\n",
                      bool* only_notes = nullptr);

// `path`: the last user message, if the model can read no part of it. Throws ApiError 400 that names it, unless it is
// "".
void RefuseUnreadable(const std::string& path);

}  // namespace dsv4::server
