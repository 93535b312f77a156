#include "server/api/routes.h"

#include <array>

#include "server/api/body_fields.h"

namespace dsv4::server {

namespace {

constexpr ErrorForm kByOpenAi = ErrorForm::kOpenAi, kByAnthropic = ErrorForm::kAnthropic;

const std::array kRoutes = {
    RouteEntry{"POST", "/v1/chat/completions", ServeChat, kByOpenAi, "OpenAI's chat completions", &kChatBody},
    RouteEntry{"POST", "/v1/completions", ServeCompletions, kByOpenAi, "OpenAI's completions of texts or token ids",
               &kCompletionsBody},
    RouteEntry{"POST", "/v1/responses", ServeResponses, kByOpenAi, "OpenAI's responses", &kResponsesBody},
    RouteEntry{"POST", "/v1/responses/compact", ServeCompactResponse, kByOpenAi,
               "Replaces a conversation by its user's messages and a summary", &kResponsesPromptBody},
    RouteEntry{"POST", "/v1/responses/input_tokens", ServeResponseTokens, kByOpenAi,
               "The number of tokens of a response's input", &kResponsesPromptBody},
    RouteEntry{"GET", "/v1/responses/{name}/input_items", ServeInputItems, kByOpenAi,
               "The input items of a stored response"},
    RouteEntry{"GET", "/v1/responses/{name}", ServeStoredResponse, kByOpenAi, "A stored response"},
    RouteEntry{"DELETE", "/v1/responses/{name}", ServeDeleteResponse, kByOpenAi, "Deletes a stored response"},
    RouteEntry{"POST", "/v1/messages", ServeMessages, kByAnthropic, "Anthropic's messages", &kMessagesBody},
    RouteEntry{"POST", "/v1/messages/count_tokens", ServeCountTokens, kByAnthropic, "The number of tokens of a message",
               &kCountTokensBody},
    RouteEntry{"GET", "/v1/models", ServeModels, kByOpenAi, "The served names"},
    RouteEntry{"GET", "/v1/models/{name}", ServeModels, kByOpenAi, "One served name"},
    RouteEntry{"POST", "/v1/chat/completions/render", ServeChatRender, kByOpenAi, "The token ids of a chat",
               &kChatRenderBody},
    RouteEntry{"POST", "/v1/completions/render", ServeCompletionsRender, kByOpenAi, "The token ids of prompts",
               &kCompletionsRenderBody},
    RouteEntry{"POST", "/tokenize", ServeTokenize, kByOpenAi, "Token ids of a text or a chat", &kTokenizeBody},
    RouteEntry{"POST", "/detokenize", ServeDetokenize, kByOpenAi, "The text of token ids", &kDetokenizeBody},
    RouteEntry{"GET", "/tokenizer_info", ServeTokenizerInfo, kByOpenAi, "The tokenizer's settings"},
    RouteEntry{"GET", "/get_model_info", ServeModelInfo, kByOpenAi, "The model, in SGLang's form"},
    RouteEntry{"GET", "/get_server_info", ServeServerInfo, kByOpenAi, "The server, in SGLang's form"},
    RouteEntry{"GET", "/version", ServeVersion, kByOpenAi, "Version, commit, compiler"},
    RouteEntry{"GET", "/openapi.json", ServeOpenApi, kByOpenAi, "This description, for programs"},
    RouteEntry{"GET", "/docs", ServeDocs, kByOpenAi, "This description, to read"},
    RouteEntry{"GET", "/metrics", nullptr, kByOpenAi, "Metrics in Prometheus' text format"},
    RouteEntry{"GET", "/health", nullptr, kByOpenAi,
               "200 if the server takes new requests, otherwise 503; needs no key"},
    RouteEntry{"GET", "/health/ready", nullptr, kByOpenAi, "The same as /health"},
    RouteEntry{"GET", "/health/live", nullptr, kByOpenAi, "503 only if a step hangs; needs no key"},
    RouteEntry{"GET", "/", nullptr, kByOpenAi, "The chat page"},
    RouteEntry{"GET", "/favicon.ico", nullptr, kByOpenAi, "An empty reply"},
};

// A name at the end of a route may have slashes.
bool Fits(std::string_view route, std::string_view path) {
  const size_t open = route.find('{');
  if (open == route.npos) return route == path;
  const std::string_view before = route.substr(0, open), after = route.substr(route.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after)) return false;
  const std::string_view name = path.substr(before.size(), path.size() - before.size() - after.size());
  return after.empty() || name.find('/') == name.npos;
}

// If two routes fit a path, the one with the higher rank counts.
int Rank(std::string_view route) { return route.find('{') == route.npos ? 2 : route.ends_with('}') ? 0 : 1; }

bool IsPath(std::string_view path) { return FindRoute(path, "GET") != nullptr; }

std::string WithSingleSlashes(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

}  // namespace

std::span<const RouteEntry> Routes() { return kRoutes; }

const RouteEntry* FindRoute(std::string_view path, std::string_view method) {
  const RouteEntry* found = nullptr;
  for (const RouteEntry& route : kRoutes) {
    if (!Fits(route.path, path)) continue;
    const int more = found == nullptr ? 1 : Rank(route.path) - Rank(found->path);
    if (more > 0 || (more == 0 && route.method == method)) found = &route;
  }
  return found;
}

std::string RoutePath(std::string_view path) {
  const std::string clean = WithSingleSlashes(path);
  if (IsPath(clean)) return clean;
  std::string_view rest = clean;
  for (const std::string_view base : {"/beta", "/anthropic"}) {
    if (rest.starts_with(base) && rest.substr(base.size()).starts_with('/')) {
      rest.remove_prefix(base.size());
      break;
    }
  }
  const std::string in_v1 = rest.starts_with("/v1/") ? std::string(rest) : "/v1" + std::string(rest);
  return IsPath(in_v1) ? in_v1 : std::string(path);
}

std::string PathMeantBy(std::string_view path) {
  const std::string clean = WithSingleSlashes(path);
  if (!clean.starts_with("/v1/")) return "";
  const std::string meant = RoutePath(std::string_view(clean).substr(3));
  return IsPath(meant) ? meant : "";
}

std::string MethodsOf(std::string_view path) {
  const RouteEntry* found = FindRoute(path, "");
  std::string methods;
  for (const RouteEntry& route : kRoutes) {
    if (found != nullptr && route.path == found->path) methods.append(methods.empty() ? "" : ", ").append(route.method);
  }
  return methods;
}

}  // namespace dsv4::server
