// JSON: nlohmann::json with a limit of depth. Include this in .cc files only; headers above base/ stay free of JSON
// types.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "dsv4/status.h"

namespace dsv4 {

using Json = nlohmann::ordered_json;  // key order is kept; a duplicate key's last value wins at the first key's place

inline constexpr int kMaxJsonDepth = 64;

// Parses `text`, with at most kMaxJsonDepth nested arrays and objects. `what` names the text in the error, which gives
// the byte offset of the mistake.
Result<Json> ParseJson(std::string_view text, std::string_view what);

// Reads the file at `path` (at most max_bytes) and parses it.
Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes = int64_t{256} << 20,
                          FileFrom from = FileFrom::kUser);

}  // namespace dsv4
