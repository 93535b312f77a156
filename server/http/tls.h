// TLS on non-blocking sockets, by OpenSSL. A build without OpenSSL (tls_none.cc) refuses it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "dsv4/status.h"

namespace dsv4::server {

// The server's side of one connection. Errors end the connection and are not reported.
class TlsStream {
 public:
  enum class Io { kDone, kWantRead, kWantWrite, kEnd };  // what the socket must be ready for before the same call

  virtual ~TlsStream() = default;
  // The first calls include the handshake. A call reads at most one record. The rest of a record that is larger than
  // `size` stays buffered.
  virtual Io Read(char* bytes, size_t size, size_t* num_read) = 0;
  virtual bool HasBuffered() const = 0;  // the next Read returns bytes even if the socket has none
  virtual Io Write(const char* bytes, size_t size, size_t* num_written) = 0;
  virtual void Shutdown() = 0;  // announces the end of the stream, if that can be written at once
};

class TlsContext {
 public:
  // Loads PEM files: the certificate with the certificates that sign it, and its key. TLS 1.2 and 1.3. Ignores SIGPIPE
  // in the whole process, so that writing to a closed socket is an error. Errors: kInvalidArgument, naming the file.
  static Result<std::unique_ptr<TlsContext>> Load(const std::string& cert_file, const std::string& key_file);
  virtual ~TlsContext() = default;

  // Requires a connected socket that stays open as long as the stream. Returns null if there is no memory.
  virtual std::unique_ptr<TlsStream> Accept(int socket) = 0;
};

}  // namespace dsv4::server
