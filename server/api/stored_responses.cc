// GET and DELETE /v1/responses/ID, and GET /v1/responses/ID/input_items.
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "server/api/api.h"
#include "server/api/response_store.h"
#include "server/api/responses_input.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kInputItems = "/input_items";
constexpr int64_t kMostListed = 100, kUsuallyListed = 20;  // items of one reply

// Returns the ID of a request for /v1/responses/ID.
std::string WantedResponse(const ExchangePtr& exchange) { return PathParameter(exchange->request(), "/v1/responses"); }

ApiError NoSuchResponse(const std::string& id) { return {404, "there is no response '" + id + "'", "response_id"}; }

std::shared_ptr<const StoredResponse> Find(const Api& api, const ExchangePtr& exchange, const std::string& id) {
  auto found = api.responses == nullptr ? nullptr : api.responses->Get(TenantOf(api, exchange->request()), id);
  if (found == nullptr) throw NoSuchResponse(id);
  return found;
}

// The query of a list: ?limit=20&order=desc&after=ID.
struct ListQuery {
  int64_t limit = kUsuallyListed;
  bool newest_first = true;
  std::string after;
};

ListQuery ReadListQuery(std::string_view query) {
  ListQuery list;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::string_view name = pair.substr(0, pair.find('='));
    const std::string_view value = name.size() < pair.size() ? pair.substr(name.size() + 1) : "";
    if (name == "order") {
      if (value != "asc" && value != "desc") Refuse("order", "order must be asc or desc");
      list.newest_first = value == "desc";
    } else if (name == "after") {
      list.after = value;
    } else if (name == "limit") {
      const char* end = value.data() + value.size();
      if (std::from_chars(value.data(), end, list.limit).ptr != end || list.limit < 1 || list.limit > kMostListed)
        Refuse("limit", "limit must be a whole number from 1 to " + std::to_string(kMostListed));
    }
  }
  return list;
}

// Returns all items before the output of the response, with an id each.
Json InputItems(const StoredResponse& stored, const std::string& id) {
  const JsonDocument items = ParseJson(stored.items), response = ParseJson(stored.response);
  const size_t output = response.root().value("output", Json::array()).size();
  Json input = Json::array();
  for (size_t i = 0; i + output < items.root().size(); ++i)
    input.push_back(
        ListedItem(items.root()[i], "item_" + id.substr(std::min<size_t>(5, id.size())) + "_" + std::to_string(i)));
  return input;
}

}  // namespace

void ServeStoredResponse(const Api& api, const ExchangePtr& exchange) {
  exchange->Respond(200, "application/json", Find(api, exchange, WantedResponse(exchange))->response);
}

void ServeDeleteResponse(const Api& api, const ExchangePtr& exchange) {
  const std::string id = WantedResponse(exchange);
  if (api.responses == nullptr) throw NoSuchResponse(id);
  const Status removed = api.responses->Remove(TenantOf(api, exchange->request()), id);
  if (removed.code() == StatusCode::kNotFound) throw NoSuchResponse(id);
  if (!removed.ok()) throw ApiError(500, "response " + id + " is not deleted: " + removed.message());
  exchange->Respond(200, "application/json", Dump({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void ServeInputItems(const Api& api, const ExchangePtr& exchange) {
  std::string id = WantedResponse(exchange);
  id.resize(id.size() - kInputItems.size());
  const ListQuery query = ReadListQuery(exchange->request().query);
  const JsonDocument items(InputItems(*Find(api, exchange, id), id));
  Json data = Json::array();
  bool begun = query.after.empty(), more = false;
  for (size_t i = 0; i < items.root().size(); ++i) {
    const Json& item = items.root()[query.newest_first ? items.root().size() - 1 - i : i];
    more = begun && static_cast<int64_t>(data.size()) == query.limit;
    if (more) break;
    if (begun) data.push_back(item);
    begun = begun || item["id"] == query.after;
  }
  if (!begun) Refuse("after", "after names no item of this response");
  const JsonDocument reply(Json{{"object", "list"},
                                {"first_id", data.empty() ? Json(nullptr) : data.front()["id"]},
                                {"last_id", data.empty() ? Json(nullptr) : data.back()["id"]},
                                {"has_more", more},
                                {"data", std::move(data)}});
  exchange->Respond(200, "application/json", Dump(reply.root()));
}

}  // namespace dsv4::server
