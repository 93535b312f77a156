// API keys: which key a request carries, and which prefix cache that key uses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/http.h"

namespace dsv4::server {

// Returns the key in a request's header: X-Api-Key, or Authorization with Bearer or Basic. "" if there is none.
std::string GivenKey(const HttpRequest& request);

// Returns the index in `keys` of the request's key, or nullopt if it is not one of them. A wrong key takes as long as a
// right one.
std::optional<size_t> FindKey(const std::vector<std::string>& keys, const HttpRequest& request);

// Returns the name of a key in the log: its label, or "key-N" (from 1).
std::string LabelOf(const std::vector<std::string>& labels, size_t index);

// Returns the tenant of each key (prefix_cache.h). If there are several keys, each has its own tenant, named by a
// digest of the key. So the files of its cache are found again after keys were added or removed. With one key, or if
// all keys share, the tenant is "".
std::vector<std::string> TenantsOf(const std::vector<std::string>& keys, bool share);

}  // namespace dsv4::server
