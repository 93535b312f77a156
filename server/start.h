// The resources that a server takes when it starts: addresses and a folder.
#pragma once

#include <memory>
#include <optional>

#include "dsv4/server.h"
#include "dsv4/status.h"
#include "server/base/kept_folder.h"
#include "server/cache/kv_files.h"
#include "server/http/http.h"

namespace dsv4::server {

HttpOptions MakeHttpOptions(const ServerOptions& options);

// Locks the folder of --kv-disk and makes it if it is missing. Null if --kv-disk is not set. Errors: kInvalidArgument.
Result<std::unique_ptr<FolderLock>> TakeDiskFolder(const ServerOptions& options);

// Opens the folder of stored responses in the folder of --kv-disk, which must exist. Not set if responses are not
// stored, or only in memory. Errors: kInvalidArgument.
Result<std::optional<KeptFolder>> OpenResponsesFolder(const ServerOptions& options);

}  // namespace dsv4::server
