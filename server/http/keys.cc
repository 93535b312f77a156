#include "server/http/keys.h"

#include <set>
#include <string_view>

#include "server/base/base64.h"
#include "server/base/sha256.h"

namespace dsv4::server {

namespace {

constexpr size_t kTenantDigits = 32;

// A wrong key takes as long as a right one.
bool SameKey(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    difference |= static_cast<unsigned char>(key[i]) ^
                  static_cast<unsigned char>(given.empty() ? 0 : given[i % given.size()]);
  }
  return difference == 0;
}

}  // namespace

std::string GivenKey(const HttpRequest& request) {
  std::string given(request.Header("x-api-key"));
  const std::string_view authorization = request.Header("authorization");
  const size_t space = authorization.find(' ');
  if (space == std::string_view::npos) return given;
  std::string scheme(authorization.substr(0, space));
  for (char& c : scheme) c = static_cast<char>(c | 0x20);
  const size_t begin = authorization.find_first_not_of(' ', space);
  const std::string_view value = authorization.substr(begin == std::string_view::npos ? authorization.size() : begin);
  if (scheme == "bearer") given = value;
  if (scheme == "basic") {  // browsers send this; the user name does not matter
    const std::string pair = DecodeBase64(value);
    const size_t colon = pair.find(':');
    given = colon == std::string::npos ? pair : pair.substr(colon + 1);
  }
  return given;
}

std::optional<size_t> FindKey(const std::vector<std::string>& keys, const HttpRequest& request) {
  const std::string given = GivenKey(request);
  std::optional<size_t> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (SameKey(given, keys[i])) found = i;
  }
  return found;
}

std::string LabelOf(const std::vector<std::string>& labels, size_t index) {
  return index < labels.size() && !labels[index].empty() ? labels[index] : "key-" + std::to_string(index + 1);
}

std::vector<std::string> TenantsOf(const std::vector<std::string>& keys, bool share) {
  const bool several = std::set<std::string>(keys.begin(), keys.end()).size() > 1;
  std::vector<std::string> tenants;
  for (const std::string& key : keys)
    tenants.push_back(several && !share ? Sha256Hex("dsv4 tenant " + key, kTenantDigits) : "");
  return tenants;
}

}  // namespace dsv4::server
