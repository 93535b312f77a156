// What a server takes of the machine when it starts: addresses and a folder.
#pragma once

#include <memory>

#include "dsv4/server.h"
#include "dsv4/status.h"
#include "server/cache/kv_files.h"
#include "server/http/http.h"

namespace dsv4::server {

HttpOptions MakeHttpOptions(const ServerOptions& options);

// The folder of --kv-disk, made where it is not there; null: none is named. Errors: kInvalidArgument.
Result<std::unique_ptr<FolderLock>> TakeDiskFolder(const ServerOptions& options);

}  // namespace dsv4::server
