// A file that is read where its bytes are wanted. Others may write to it, or cut it off, meanwhile: then a read is an
// error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dsv4/status.h"

namespace dsv4 {

class InputFile {
 public:
  // Refuses what is no regular file, and empty ones, as MappedFile does.
  static Result<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const { return size_; }  // when it was opened

  // Bytes [begin, begin + bytes) to `to`. kDataLoss where the file ends before.
  Status Read(int64_t begin, int64_t bytes, void* to) const;

 private:
  InputFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  const std::string path_;
  const int fd_;
  const int64_t size_;
};

}  // namespace dsv4
