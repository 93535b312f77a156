// TLS on sockets that do not block, by OpenSSL. A build without it (tls_none.cc) refuses to be asked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "dsv4/status.h"

namespace dsv4::server {

// One connection's side of it. Errors end the connection; why is nobody's business but the client's.
class TlsStream {
 public:
  enum class Io { kDone, kWantRead, kWantWrite, kEnd };  // of the socket: what to wait for before the same call again

  virtual ~TlsStream() = default;
  // The handshake is part of the first calls. At most one record is read by a call, none stays behind.
  virtual Io Read(char* bytes, size_t size, size_t* num_read) = 0;
  virtual Io Write(const char* bytes, size_t size, size_t* num_written) = 0;
  virtual void Shutdown() = 0;  // tells the client that no more comes, if that can be written at once
};

class TlsContext {
 public:
  // PEM files: the certificate with those that it is signed by, and its key. TLS 1.2 and 1.3. From now on a socket that
  // its reader has closed gives an error (SIGPIPE is ignored). Errors: kInvalidArgument, naming the file.
  static Result<std::unique_ptr<TlsContext>> Load(const std::string& cert_file, const std::string& key_file);
  virtual ~TlsContext() = default;

  // On a connected socket that stays open as long as the stream. Null: no memory.
  virtual std::unique_ptr<TlsStream> Accept(int socket) = 0;
};

}  // namespace dsv4::server
