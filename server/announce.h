// The first lines of the log: the served model and its limits.
#pragma once

#include "dsv4/engine.h"
#include "dsv4/server.h"
#include "dsv4/tokenizer.h"
#include "server/base/log.h"
#include "server/http/http.h"

namespace dsv4::server {

// The last line says where the server listens, once it does.
void Announce(const Log& log, const ServerOptions& options, const ModelInfo& model, const Tokenizer& tokenizer,
              const HttpServer& http);

}  // namespace dsv4::server
