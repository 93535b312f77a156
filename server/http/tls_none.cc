#include "server/http/tls.h"

namespace dsv4::server {

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const std::string&, const std::string&) {
  return InvalidArgument(
      "--tls-cert needs OpenSSL, which this build does not have: install libssl-dev and build again");
}

}  // namespace dsv4::server
