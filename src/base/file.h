// Files: whole-file reads and read-only memory maps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/status.h"

namespace dsv4 {

// The whole file as bytes; refuses directories, and files of more than max_bytes.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Writes the pieces, one behind the other, to a temporary file in the same folder and renames it, so that readers see
// all or nothing. A path that is there already must be a regular file: a rename would replace a device, a pipe or a link.
Status WriteFile(const std::string& path, std::span<const std::string_view> pieces);
inline Status WriteFile(const std::string& path, std::string_view bytes) { return WriteFile(path, {&bytes, 1}); }

bool FileExists(const std::string& path);

// A read-only, private map of a whole file. The bytes live as long as the object.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const uint8_t* data, int64_t size);
  std::string path_;
  const uint8_t* data_;
  int64_t size_;
};

}  // namespace dsv4
