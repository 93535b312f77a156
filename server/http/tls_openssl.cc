#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "server/http/tls.h"

namespace dsv4::server {

namespace {

using SslPtr = std::unique_ptr<SSL, decltype(&SSL_free)>;
using SslContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

std::string LastTlsError() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  if (ERR_GET_LIB(code) == ERR_LIB_SYS) return std::strerror(ERR_GET_REASON(code));
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : code != 0 ? text.data() : "no such file, or it cannot be read";
}

class OpenSslStream : public TlsStream {
 public:
  explicit OpenSslStream(SslPtr ssl) : ssl_(std::move(ssl)) {}

  Io Read(char* bytes, size_t size, size_t* num_read) override {
    ERR_clear_error();
    *num_read = 0;
    return After(SSL_read_ex(ssl_.get(), bytes, size, num_read));
  }
  bool HasBuffered() const override { return !failed_ && SSL_pending(ssl_.get()) > 0; }
  Io Write(const char* bytes, size_t size, size_t* num_written) override {
    ERR_clear_error();
    *num_written = 0;
    return After(SSL_write_ex(ssl_.get(), bytes, size, num_written));
  }
  void Shutdown() override {
    if (failed_) return;
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }

 private:
  Io After(int done) {
    if (done == 1) return Io::kDone;
    switch (SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ:
        return Io::kWantRead;
      case SSL_ERROR_WANT_WRITE:
        return Io::kWantWrite;
      case SSL_ERROR_ZERO_RETURN:
        return Io::kEnd;
      default:
        failed_ = true;
        return Io::kEnd;
    }
  }

  const SslPtr ssl_;
  bool failed_ = false;  // no further call is allowed
};

class OpenSslContext : public TlsContext {
 public:
  explicit OpenSslContext(SslContextPtr context) : context_(std::move(context)) {}

  std::unique_ptr<TlsStream> Accept(int socket) override {
    SslPtr ssl(SSL_new(context_.get()), &SSL_free);
    if (ssl == nullptr || SSL_set_fd(ssl.get(), socket) != 1) return nullptr;
    SSL_set_accept_state(ssl.get());
    return std::make_unique<OpenSslStream>(std::move(ssl));
  }

 private:
  const SslContextPtr context_;
};

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const std::string& cert_file, const std::string& key_file) {
  ERR_clear_error();
  SslContextPtr context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) return ResourceExhausted("TLS: " + LastTlsError());
  SSL_CTX* c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  SSL_CTX_set_options(c, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // A pending write may be retried from another address; idle connections hold no buffers.
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_use_certificate_chain_file(c, cert_file.c_str()) != 1)
    return InvalidArgument("--tls-cert " + cert_file + " has no certificate in PEM form: " + LastTlsError());
  if (SSL_CTX_use_PrivateKey_file(c, key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return InvalidArgument("--tls-key " + key_file + " has no PEM key that fits the certificate: " + LastTlsError());
  if (SSL_CTX_check_private_key(c) != 1)
    return InvalidArgument("--tls-key " + key_file + " is not the key of " + cert_file + ": " + LastTlsError());
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  return std::unique_ptr<TlsContext>(std::make_unique<OpenSslContext>(std::move(context)));
}

}  // namespace dsv4::server
