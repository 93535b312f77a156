#include "server/structured/structural_tag.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "server/structured/formats.h"

namespace dsv4::server {

namespace {

constexpr std::array<std::string_view, 12> kFormats = {"const_string", "json_schema", "regex", "grammar",
                                                       "any_text",     "sequence",    "or",    "tag",
                                                       "optional",     "plus",        "star",  "triggered_tags"};
constexpr std::string_view kSeparated = "tags_with_separator";
constexpr std::array<std::string_view, 15> kMembers = {
    "type", "value", "pattern", "grammar",  "json_schema", "excludes",     "elements",        "content",
    "tags", "begin", "end",     "triggers", "separator",   "at_least_one", "stop_after_first"};

constexpr std::array<std::string_view, 5> kMarks = {"begin", "end", "triggers", "separator", "excludes"};
constexpr size_t kMaxMarks = size_t{64} << 10;  // bytes: the compiler holds about 1 KB for each

template <typename List>
bool Has(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool IsText(const Json& value) { return value.is_string(); }

size_t BytesOf(const Json& texts) {
  if (texts.is_string()) return texts.get_ref<const std::string&>().size();
  size_t bytes = 0;
  if (texts.is_array()) {
    for (const Json& text : texts) bytes += BytesOf(text);
  }
  return bytes;
}

// Rewrites a format and the formats inside it. JSON of a request nests at most 200 levels.
class TagReader {
 public:
  explicit TagReader(std::string param) : param_(std::move(param)) {}

  // `is_tag`: an element of "tags", whose type may be missing.
  Json Read(const Json& given, bool is_tag = false) {
    if (!given.is_object()) Refuse(param_, param_ + ": a format must be an object");
    const Json type = given.value("type", is_tag ? Json("tag") : Json());
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (!Has(kFormats, name) && name != kSeparated) {
      Refuse(param_, param_ + " has a format of the type \"" + name +
                         "\"; supported are const_string, json_schema, regex, grammar, any_text, sequence, or, tag, "
                         "optional, plus, star, triggered_tags and tags_with_separator");
    }
    if (name == "json_schema") return ReadSchema(given);
    Json format = {{"type", name}};
    for (const auto& [member, value] : given.items()) {
      if (!Has(kMembers, member)) Refuse(param_, param_ + ": " + name + " has no member \"" + member + "\" here");
      format[member] = ReadMember(member, value);
    }
    if (name == "triggered_tags") CheckTriggers(format);
    return format;
  }

 private:
  Json ReadSchema(const Json& given) const {
    const Json schema = given.value("json_schema", Json());
    if (!schema.is_object() && !schema.is_boolean()) Refuse(param_, param_ + ": json_schema must be a JSON schema");
    if (given.value("style", Json("json")) != "json")
      Refuse(param_, param_ + ": the style of json_schema must be json");
    return JsonFormat(schema);
  }

  Json ReadMember(const std::string& member, const Json& value) {
    if (member == "content") return Read(value);
    const bool is_list = member == "elements" || member == "tags";
    if (is_list && value.is_array()) {
      Json list = Json::array();
      for (const Json& element : value) list.push_back(Read(element, member == "tags"));
      return list;
    }
    // Texts only: marks by token ids would stand for special tokens, which no reply may have.
    const bool texts = value.is_array() && std::all_of(value.begin(), value.end(), IsText);
    if (is_list || (value.is_object()) || (value.is_array() && !texts))
      Refuse(param_, param_ + ": " + member + " has a value that is not supported; expected texts");
    if (Has(kMarks, member)) CountMarks(BytesOf(value));
    return value;
  }

  void CountMarks(size_t bytes) {
    marks_ += bytes;
    if (marks_ <= kMaxMarks) return;
    Refuse(param_, param_ + ": begin, end, triggers, separator and excludes together have more than " +
                       std::to_string(kMaxMarks) + " bytes, the limit");
  }

  void CheckTriggers(const Json& format) const {
    const auto triggers = format.find("triggers"), tags = format.find("tags");
    if (triggers == format.end() || !triggers->is_array() || tags == format.end() || !tags->is_array()) return;
    std::vector<std::string_view> begins;
    for (const Json& tag : *tags) {
      const auto begin = tag.find("begin");
      if (begin != tag.end() && begin->is_string()) begins.push_back(begin->get_ref<const std::string&>());
    }
    std::sort(begins.begin(), begins.end());
    for (size_t i = 0; i < triggers->size(); ++i) {
      const std::string_view trigger = (*triggers)[i].get_ref<const std::string&>();
      const auto at = std::lower_bound(begins.begin(), begins.end(), trigger);
      if (at == begins.end() || !at->starts_with(trigger))
        Refuse(param_, param_ + ": triggers[" + std::to_string(i) + "] is the start of no tag");
    }
  }

  const std::string param_;
  size_t marks_ = 0;  // bytes
};

Json OlderForm(const Json& tag, const std::string& param) {
  Json tags = Json::array();
  for (const Json& structure : tag["structures"]) {
    const Fields in(structure, param + ".structures");
    const Json* schema = in.Get("schema");
    tags.push_back({{"type", "tag"},
                    {"begin", in.Text("begin").value_or("")},
                    {"content", {{"type", "json_schema"}, {"json_schema", schema == nullptr ? Json(true) : *schema}}},
                    {"end", in.Text("end").value_or("")}});
  }
  return {{"type", "triggered_tags"}, {"triggers", tag.value("triggers", Json::array())}, {"tags", std::move(tags)}};
}

}  // namespace

Json TagFormat(const Json& tag, const std::string& param) {
  const Fields in(tag, param);
  TagReader reader(param);
  if (in.Has("format")) return reader.Read(*in.Get("format"));
  if (in.Array("structures") != nullptr) return reader.Read(OlderForm(tag, param));
  Refuse(param, param + " needs format, or structures and triggers");
}

}  // namespace dsv4::server
