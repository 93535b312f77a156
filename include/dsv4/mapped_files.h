// Memory-mapped files of a model. An engine on a CPU reads its weights from them for as long as it lives.
#pragma once

#include <string>
#include <vector>

#include "dsv4/export.h"

namespace dsv4 {

// Returns the path of the mapped file that contains `address`, printable on a terminal; null if there is none.
// A signal handler may call it. Reading a mapped file that was truncated, or whose disk failed,
// raises SIGBUS with the address that was read. Nothing more can be read from such a file.
DSV4_API const char* MappedFileAt(const void* address);

// Returns the mapped files whose size or modification time has changed since they were mapped. A process writes to
// these files, so the bytes read from them are undefined. A file that was replaced by rename is not among them: the
// mapping still has the old contents. Thread-safe. May wait for the disk.
DSV4_API std::vector<std::string> ChangedMappedFiles();

}  // namespace dsv4
