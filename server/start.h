// The resources that a server takes when it starts: addresses and a folder.
#pragma once

#include <memory>

#include "dsv4/server.h"
#include "dsv4/status.h"
#include "server/cache/kv_files.h"
#include "server/http/http.h"

namespace dsv4::server {

HttpOptions MakeHttpOptions(const ServerOptions& options);

// Locks the folder of --kv-disk and makes it if it is missing. Null if --kv-disk is not set. Errors: kInvalidArgument.
Result<std::unique_ptr<FolderLock>> TakeDiskFolder(const ServerOptions& options);

}  // namespace dsv4::server
