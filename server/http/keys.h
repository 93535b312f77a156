// API keys: which one a request carries, and whose prefix cache that makes it use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/http.h"

namespace dsv4::server {

// The key in a request's header: X-Api-Key, or Authorization as Bearer or Basic. "": there is none.
std::string GivenKey(const HttpRequest& request);

// The place in `keys` of the key of a request's header. Nullopt: it is none
// of them. Takes as long for a wrong key as for a right one.
std::optional<size_t> FindKey(const std::vector<std::string>& keys, const HttpRequest& request);

// What the log calls the key at `index`: its label, or "key-N" (from 1).
std::string LabelOf(const std::vector<std::string>& labels, size_t index);

// The tenant of each key (prefix_cache.h). Where there are several keys each has its own, named by a digest of the key,
// so that files of its cache are found again after keys came and went; otherwise, and where all share, it is "".
std::vector<std::string> TenantsOf(const std::vector<std::string>& keys, bool share);

}  // namespace dsv4::server
