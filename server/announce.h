// The first lines of the log: what is served, and within which limits.
#pragma once

#include "dsv4/engine.h"
#include "dsv4/server.h"
#include "dsv4/tokenizer.h"
#include "server/base/log.h"
#include "server/http/http.h"

namespace dsv4::server {

// The last of them says where the server listens, when it does.
void Announce(const Log& log, const ServerOptions& options, const ModelInfo& model, const Tokenizer& tokenizer,
              const HttpServer& http);

}  // namespace dsv4::server
