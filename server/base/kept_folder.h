// A folder of files that the server writes and reads back after a restart. Another user could
// put anything in place of a file. So links are not followed, only regular files are read, and each read has a limit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"

namespace dsv4::server {

// Names are names in the folder, without a slash. Any thread may call it; calls for one name must not overlap.
class KeptFolder {
 public:
  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t changed_ns = 0;  // time of the last change
  };

  // Makes the folder if it is missing. Errors: kInvalidArgument (it is a link or no folder, or it cannot be made).
  static Result<KeptFolder> Open(const std::string& path);
  KeptFolder(KeptFolder&& other) noexcept;
  KeptFolder& operator=(KeptFolder&&) = delete;
  ~KeptFolder();

  // Returns the regular files, in no order.
  std::vector<Entry> List() const;
  // Returns nullopt if there is no such regular file, if it has more than `max_bytes`, or if it cannot be read.
  std::optional<std::string> Read(const std::string& name, size_t max_bytes) const;
  // Replaces the file as a whole: writes name + ".tmp" first. Returns false if that failed; the old file then remains.
  bool Write(const std::string& name, std::span<const std::string_view> pieces) const;
  // Returns when the file is gone, also if it never existed. Sync makes that last when the machine loses power.
  Status Remove(const std::string& name) const;
  Status Sync() const;

 private:
  explicit KeptFolder(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace dsv4::server
