// Parts of messages as text, in any API's form. An agent sends its whole history with every request: what this model
// cannot read in there (images, documents, blocks of other services) becomes a short note, never an error that would
// come again and again.
#pragma once

#include <string>
#include <string_view>

#include "server/base/json.h"

namespace dsv4::server {

struct PartText {
  std::string text;
  bool is_note = false;  // it stands for something that the model does not get to read
};

// "[image left out: this model reads text]".
std::string LeftOut(std::string_view what);

// A part of a list: a string or an object with a "type". Text documents and files are read, also in base64.
// Throws ApiError 400 where a part has no type, or a text none.
PartText ReadPart(const Json& part, const std::string& path);

// A string, null, or a list of parts, joined by `between`. `only_notes`: there are parts, and the model can read none.
std::string ReadParts(const Json& content, const std::string& path, std::string_view between = "\n\n",
                      bool* only_notes = nullptr);

// Throws ApiError 400 that names the field, where there is one: the last user's message, of which nothing can be read.
void RefuseUnreadable(const std::string& path);

}  // namespace dsv4::server
