// Files that are read where they lie, mapped into memory: a model's weights, for as long as an engine on a CPU lives.
#pragma once

#include <string>
#include <vector>

namespace dsv4 {

// The mapped file that `address` belongs to, fit for a terminal; null: none. Reading one that has become shorter, or
// whose disk fails, is a SIGBUS with that address: a handler may call this, and nothing of the file can be read any
// more.
const char* MappedFileAt(const void* address);

// The mapped files whose size or time of change is no longer what it was: their owner writes to them, and nobody knows
// what is read from them. A file that another one has taken the place of is not among them, as the old one stays what
// it was. Any thread; may wait for the disk.
std::vector<std::string> ChangedMappedFiles();

}  // namespace dsv4
