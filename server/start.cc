#include "server/start.h"

#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

#include "server/base/random.h"
#include "server/cache/kv_events.h"
#include "server/http/access.h"
#include "server/observe/spans.h"
#include "server/schedule/step_trace.h"

namespace dsv4::server {

namespace {

std::chrono::milliseconds ToMilliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// A value that no browser sends as an origin would silently lock out its pages.
Status CheckOrigin(const std::string& origin) {
  if (origin == "*" || origin == "null") return {};
  const size_t scheme = origin.find("://");
  if (scheme != std::string::npos && scheme > 0 && origin.size() > scheme + 3 && origin == LowerAscii(origin) &&
      origin.find_first_of("/ ,", scheme + 3) == std::string::npos) {
    return {};
  }
  return InvalidArgument(
      "--cors-origin is '" + origin +
      "'; accepted: one origin as browsers send it, for example https://chat.example (lower case, after the "
      "host only a port), or *; repeat the flag for several origins");
}

// With fewer the server would start, and then have none for connections.
constexpr rlim_t kLeastDescriptors = 32;

Status CheckDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeastDescriptors) return {};
  return ResourceExhausted("the process may open only " + std::to_string(limit.rlim_cur) +
                           " files, and the server needs at least " + std::to_string(kLeastDescriptors) +
                           ", more with many connections: raise the limit (ulimit -n 4096)");
}

}  // namespace

HttpOptions MakeHttpOptions(const ServerOptions& options) {
  return {.host = options.host,
          .port = options.port,
          .metrics_port = options.metrics_port,
          .tls_cert = options.tls_cert,
          .tls_key = options.tls_key,
          .max_body_total = options.max_body_total,
          .max_connections = options.max_connections,
          .header_timeout = ToMilliseconds(options.header_timeout_s),
          .body_timeout = ToMilliseconds(options.body_timeout_s),
          .write_timeout = ToMilliseconds(options.write_timeout_s),
          .min_rate = options.min_rate};
}

Result<std::unique_ptr<FolderLock>> TakeDiskFolder(const ServerOptions& options) {
  if (options.kv_disk.empty()) return std::unique_ptr<FolderLock>();
  std::error_code error;
  std::filesystem::create_directories(options.kv_disk, error);
  if (error) return InvalidArgument("--kv-disk: cannot make the folder '" + options.kv_disk + "': " + error.message());
  return FolderLock::Take(options.kv_disk);
}

Result<std::optional<KeptFolder>> OpenResponsesFolder(const ServerOptions& options) {
  if (options.store_responses_bytes == 0 || options.kv_disk.empty()) return std::optional<KeptFolder>();
  auto folder = KeptFolder::Open(options.kv_disk + "/responses");
  if (!folder.ok()) return InvalidArgument("--kv-disk: " + folder.status().message());
  return std::optional<KeptFolder>(std::move(*folder));
}

}  // namespace dsv4::server

namespace dsv4 {

Status CheckServing(const ServerOptions& options) {
  using namespace server;
  DSV4_RETURN_IF_ERROR(CheckDescriptors());
  for (const std::string& origin : options.cors_origins) DSV4_RETURN_IF_ERROR(CheckOrigin(origin));
  DSV4_RETURN_IF_ERROR(CheckRandomSource());
  DSV4_RETURN_IF_ERROR(server::HttpServer::Listen(MakeHttpOptions(options), {}, {}, {}).status());
  DSV4_RETURN_IF_ERROR(TakeDiskFolder(options).status());
  DSV4_RETURN_IF_ERROR(OpenResponsesFolder(options).status());
  DSV4_RETURN_IF_ERROR(CheckTraceFile(options.trace_steps));
  if (!options.otlp_endpoint.empty())
    DSV4_RETURN_IF_ERROR(SpanExporter::Create(options.otlp_endpoint, "", {}).status());
  if (options.kv_events_port < 0) return {};
  return KvPublisher::Bind(options.host, options.kv_events_port).status();
}

}  // namespace dsv4
