#include "server/http/tls.h"

namespace dsv4::server {

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const std::string&, const std::string&) {
  return InvalidArgument("--tls-cert: this program was built without OpenSSL (scripts/setup installs libssl-dev)");
}

}  // namespace dsv4::server
