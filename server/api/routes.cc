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
    RouteEntry{"GET", "/v1/responses/", ServeStoredResponse, kByOpenAi, "A stored response"},
    RouteEntry{"DELETE", "/v1/responses/", ServeDeleteResponse, kByOpenAi, "Deletes a stored response"},
    RouteEntry{"POST", "/v1/messages", ServeMessages, kByAnthropic, "Anthropic's messages", &kMessagesBody},
    RouteEntry{"POST", "/v1/messages/count_tokens", ServeCountTokens, kByAnthropic, "The number of tokens of a message",
               &kCountTokensBody},
    RouteEntry{"GET", "/v1/models", ServeModels, kByOpenAi, "The served names"},
    RouteEntry{"GET", "/v1/models/", ServeModels, kByOpenAi, "One served name"},
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

bool HasPath(const RouteEntry& route, std::string_view path) {
  if (route.path == path) return true;
  return route.path.size() > 1 && route.path.back() == '/' && path.starts_with(route.path);
}

}  // namespace

std::span<const RouteEntry> Routes() { return kRoutes; }

const RouteEntry* FindRoute(std::string_view path, std::string_view method) {
  const RouteEntry* found = nullptr;
  for (const RouteEntry& route : kRoutes) {
    if (HasPath(route, path) && (found == nullptr || route.method == method)) found = &route;
  }
  return found;
}

std::string PathMeantBy(std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string longer = "/v1" + std::string(path);
  const std::string_view shorter = path.starts_with("/v1/") ? path.substr(3) : path;
  for (const std::string_view meant : {path, std::string_view(longer), shorter}) {
    if (FindRoute(meant, "GET") != nullptr) return std::string(meant);
  }
  return "";
}

std::string MethodsOf(std::string_view path) {
  std::string methods;
  for (const RouteEntry& route : kRoutes) {
    if (HasPath(route, path)) methods.append(methods.empty() ? "" : ", ").append(route.method);
  }
  return methods;
}

}  // namespace dsv4::server
