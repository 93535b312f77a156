#include "base/json.h"

#include "base/str.h"

namespace dsv4 {

namespace {

// Counts nesting while scanning strings and escapes only: enough to refuse deep input before the parser recurses.
int MaxDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view what) {
  if (MaxDepth(text) > kMaxJsonDepth) {
    return DataLoss(StrCat(what, ": JSON nested deeper than ", kMaxJsonDepth, " levels"));
  }
  if (const size_t nul = text.find('\0'); nul != text.npos) {  // the parser would end the text there
    return DataLoss(StrCat(what, ": not valid JSON near byte ", nul + 1));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    return DataLoss(StrCat(what, ": not valid JSON near byte ", e.byte));
  } catch (const Json::exception& e) {  // numbers out of range
    return DataLoss(StrCat(what, ": not valid JSON: ", e.what()));
  }
}

Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes, FileFrom from) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, max_bytes, from));
  return ParseJson(text, path);
}

}  // namespace dsv4
