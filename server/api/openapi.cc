// /openapi.json and /docs, generated from the tables of routes and fields.
#include <string>
#include <string_view>

#include "dsv4/version.h"
#include "server/api/routes.h"

namespace dsv4::server {

namespace {

constexpr double kNoBound = 1e30;

Json FieldSchema(const FieldSpec& field) {
  Json schema = Json::object();
  switch (field.kind) {
    case FieldKind::kBool:
      schema["type"] = "boolean";
      break;
    case FieldKind::kInteger:
      schema["type"] = "integer";
      break;
    case FieldKind::kNumber:
      schema["type"] = "number";
      break;
    case FieldKind::kText:
      schema["type"] = "string";
      break;
    case FieldKind::kArray:
      schema["type"] = "array";
      break;
    case FieldKind::kObject:
      schema["type"] = "object";
      break;
    case FieldKind::kAny:
      break;
    case FieldKind::kRefused:
      schema["deprecated"] = true;
      schema["description"] = std::string("Not supported: ") + field.help +
                              ". A value that changes nothing is accepted.";
      return schema;
  }
  const bool whole = field.kind == FieldKind::kInteger;
  const auto bound = [&](double value) { return whole ? Json(static_cast<int64_t>(value)) : Json(value); };
  if (whole || field.kind == FieldKind::kNumber) {
    if (field.low > -kNoBound) schema["minimum"] = bound(field.low);
    if (field.high < kNoBound) schema["maximum"] = bound(field.high);
  }
  schema["description"] = field.help;
  return schema;
}

Json OperationOf(const RouteEntry& route) {
  Json operation = {{"summary", route.summary}};
  if (route.path.find("{name}") != route.path.npos) {
    operation["parameters"] = Json::array(
        {{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (route.body != nullptr) {
    Json properties = Json::object();
    for (const auto& fields : route.body->parts()) {
      for (const FieldSpec& field : fields) properties[field.name] = FieldSchema(field);
    }
    const Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
    operation["requestBody"] = {{"required", true}, {"content", {{"application/json", {{"schema", schema}}}}}};
  }
  const char* error = route.form == ErrorForm::kAnthropic ? "AnthropicError" : "Error";
  const Json ref = {{"schema", {{"$ref", std::string("#/components/schemas/") + error}}}};
  operation["responses"] = {
      {"200", {{"description", "The reply; text/event-stream with stream: true."}}},
      {"default",
       {{"description", "The error: what is wrong and what to do."}, {"content", {{"application/json", ref}}}}}};
  if (route.path.starts_with("/health")) operation["security"] = Json::array();
  return operation;
}

Json ErrorSchemas() {
  const Json text = {{"type", "string"}}, maybe = {{"type", Json::array({"string", "null"})}};
  const auto object = [](Json properties) { return Json{{"type", "object"}, {"properties", std::move(properties)}}; };
  return {
      {"Error", object({{"error", object({{"message", text}, {"type", text}, {"param", maybe}, {"code", maybe}})}})},
      {"AnthropicError",
       object({{"type", text}, {"error", object({{"type", text}, {"message", text}})}, {"request_id", text}})}};
}

std::string HtmlText(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string FieldRow(const FieldSpec& field) {
  const Json schema = FieldSchema(field);
  std::string kind = schema.contains("type") ? schema["type"].get<std::string>() : "";
  if (schema.contains("minimum")) kind += ", from " + schema["minimum"].dump();
  if (schema.contains("maximum")) kind += (schema.contains("minimum") ? " to " : ", to ") + schema["maximum"].dump();
  return "<tr><td><code>" + HtmlText(field.name) + "</code><td>" + HtmlText(kind) + "<td>" +
         HtmlText(schema["description"].get<std::string>()) + "\n";
}

constexpr std::string_view kPageHead = R"(<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>dsv4: routes</title><style>
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
padding: 0 1rem } table { border-collapse: collapse; width: 100% } td { border-top: 1px solid #8885; padding: .3rem
.6rem .3rem 0; vertical-align: top } h2 { margin-top: 2rem; font-size: 1.1rem }
</style><h1>dsv4: routes</h1>
<p>The same for programs: <a href="/openapi.json">/openapi.json</a>. Unknown fields are passed over; what is wrong is a
400 that names the field.)";

}  // namespace

std::string OpenApiJson(const ServerOptions& options) {
  Json paths = Json::object();
  for (const RouteEntry& route : Routes())
    paths[std::string(route.path)][LowerAscii(route.method)] = OperationOf(route);
  Json api = {{"openapi", "3.1.0"},
              {"info",
               {{"title", "dsv4 serve"},
                {"version", GetBuildInfo().version},
                {"description", "A DeepSeek-V4 model with routes of the OpenAI, Anthropic and vLLM APIs."}}},
              {"paths", std::move(paths)},
              {"components", {{"schemas", ErrorSchemas()}}}};
  if (!options.api_keys.empty()) {
    api["components"]["securitySchemes"] = {{"key", {{"type", "http"}, {"scheme", "bearer"}}}};
    api["security"] = Json::array({{{"key", Json::array()}}});
  }
  return Dump(api);
}

std::string RoutesPage() {
  std::string page(kPageHead);
  for (const RouteEntry& route : Routes()) {
    page += "\n<h2><code>" + std::string(route.method) + " " + HtmlText(route.path) + "</code></h2><p>" +
            HtmlText(route.summary) + ".\n";
    if (route.body == nullptr) continue;
    page += "<table>\n";
    for (const auto& fields : route.body->parts()) {
      for (const FieldSpec& field : fields) page += FieldRow(field);
    }
    page += "</table>\n";
  }
  return page;
}

void ServeOpenApi(const Api& api, const ExchangePtr& exchange) {
  exchange->Respond(200, "application/json", OpenApiJson(api.options));
}

void ServeDocs(const Api&, const ExchangePtr& exchange) {
  exchange->Respond(
      200, "text/html; charset=utf-8", RoutesPage(),
      {{"Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
       {"X-Content-Type-Options", "nosniff"}});
}

}  // namespace dsv4::server
