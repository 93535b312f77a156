#include "server/api/content.h"

#include <array>
#include <cctype>
#include <utility>

#include "server/base/base64.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxName = 100;  // bytes of a type, title or address in a note

// Makes a name from a request fit a note: short, and on one line.
std::string Named(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxName)) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80 && text.size() > kMaxName)
    out.pop_back();
  return out;
}

std::string Member(const Json& object, const char* name) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const Json* Inner(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool IsTextType(std::string_view media_type) {
  return media_type.starts_with("text/") || media_type.starts_with("application/json") ||
         media_type.starts_with("application/xml");
}

// Returns the text of "data:text/plain;base64,...", or of bare base64 if the file name is one of a text file.
std::string TextOfFile(const std::string& data, std::string_view name) {
  constexpr std::array<std::string_view, 8> kSuffixes = {".txt", ".md",   ".json", ".csv",
                                                         ".xml", ".html", ".yaml", ".log"};
  const size_t comma = data.starts_with("data:") ? data.find(',') : std::string::npos;
  bool is_text = comma != std::string::npos && IsTextType(std::string_view(data).substr(5));
  for (const std::string_view suffix : kSuffixes) is_text = is_text || name.ends_with(suffix);
  return is_text ? DecodeBase64(std::string_view(data).substr(comma == std::string::npos ? 0 : comma + 1)) : "";
}

PartText WithTitle(const std::string& title, std::string text, std::string_view kind) {
  if (text.empty())
    return {LeftOut(title.empty() ? std::string(kind) : std::string(kind) + " \"" + Named(title) + "\""), true};
  return {title.empty() ? std::move(text) : title + "\n\n" + text, false};
}

// Reads Anthropic's document: plain text, a list of blocks, or base64.
PartText ReadDocument(const Json& part, const std::string& path) {
  const Json* source = Inner(part, "source");
  std::string text;
  if (source != nullptr) {
    const std::string type = Member(*source, "type");
    if (type == "text") text = Member(*source, "data");
    if (type == "base64" && IsTextType(Member(*source, "media_type"))) text = DecodeBase64(Member(*source, "data"));
    const Json* content = type == "content" ? Inner(*source, "content") : nullptr;
    if (content != nullptr) text = ReadParts(*content, path + ".source.content");
  }
  return WithTitle(Member(part, "title"), std::move(text), "document");
}

// Reads OpenAI's file: {"file": {...}} in chats, the same members next to the type in responses.
PartText ReadFile(const Json& part) {
  const Json* inner = Inner(part, "file");
  const Json& file = inner != nullptr ? *inner : part;
  const std::string name = Member(file, "filename");
  return WithTitle(name, TextOfFile(Member(file, "file_data"), name), "file");
}

// Reads the results of a search that another service ran.
PartText ReadSearchResults(const Json& part, const std::string& path) {
  const Json* content = Inner(part, "content");
  std::string text;
  for (size_t i = 0; content != nullptr && content->is_array() && i < content->size(); ++i) {
    const Json& item = (*content)[i];
    const std::string title = Member(item, "title"), url = Member(item, "url");
    if (Member(item, "type") == "text")
      text += "\n" + ReadPart(item, path + ".content[" + std::to_string(i) + "]").text;
    if (!title.empty() || !url.empty()) text += "\n" + Named(title) + " " + Named(url);
  }
  const std::string head = Member(part, "title") + (Member(part, "source").empty() ? "" : " " + Member(part, "source"));
  if (text.empty()) return {LeftOut("search results"), true};
  return {"[search results" + (head.empty() ? "" : " of " + Named(head)) + "]" + text, false};
}

}  // namespace

std::string LeftOut(std::string_view what) { return "[" + std::string(what) + " left out: this model reads text]"; }

PartText ReadPart(const Json& part, const std::string& path) {
  if (part.is_string()) return {part.get<std::string>(), false};
  const std::string type = Fields(part, path).Text("type").value_or("");
  if (type.empty()) Refuse(path + ".type", path + ".type is missing");
  constexpr std::array<std::string_view, 5> kTexts = {"text", "input_text", "output_text", "reasoning_text",
                                                      "summary_text"};
  for (const std::string_view name : kTexts) {
    if (type != name) continue;
    auto text = Fields(part, path).Text("text");
    if (!text) Refuse(path + ".text", path + ".text is missing");
    return {std::move(*text), false};
  }
  if (type == "refusal") return {Member(part, "refusal"), false};
  if (type == "thinking" || type == "redacted_thinking") return {"", false};
  if (type == "image" || type == "image_url" || type == "input_image") return {LeftOut("image"), true};
  if (type == "input_audio" || type == "audio") return {LeftOut("audio"), true};
  if (type == "video" || type == "video_url" || type == "input_video") return {LeftOut("video"), true};
  if (type == "document") return ReadDocument(part, path);
  if (type == "file" || type == "input_file") return ReadFile(part);
  if (type == "search_result" || type == "web_search_tool_result") return ReadSearchResults(part, path);
  if (type == "tool_reference") return {"[tool " + Named(Member(part, "tool_name")) + "]", false};
  if (type == "server_tool_use") return {"[" + Named(Member(part, "name")) + " was run elsewhere]", false};
  return {LeftOut(Named(type)), true};
}

std::string ReadParts(const Json& content, const std::string& path, std::string_view between, bool* only_notes) {
  if (only_notes != nullptr) *only_notes = false;
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) Refuse(path, path + " must be a string or an array of parts");
  std::string all;
  bool notes = !content.empty();
  for (size_t i = 0; i < content.size(); ++i) {
    const PartText part = ReadPart(content[i], path + "[" + std::to_string(i) + "]");
    if (i > 0) all += between;
    all += part.text;
    notes = notes && part.is_note;
  }
  if (only_notes != nullptr) *only_notes = notes;
  return all;
}

void RefuseUnreadable(const std::string& path) {
  if (!path.empty()) Refuse(path, path + " has no text: this model reads text only");
}

}  // namespace dsv4::server
