// A file of this program that is read on demand. If another process truncates it in the meantime, a read is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dsv4/status.h"

namespace dsv4 {

class InputFile {
 public:
  // Refuses empty files, links, and everything that is not a regular file.
  static Result<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Reads bytes [begin, begin + bytes) to `to`. kDataLoss: the file ends before.
  Status Read(int64_t begin, int64_t bytes, void* to) const;

 private:
  InputFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  const std::string path_;
  const int fd_;
  const int64_t size_;
};

}  // namespace dsv4
