// Files: whole-file reads and read-only memory maps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/status.h"

struct stat;

namespace dsv4 {

// The whole file as bytes; refuses directories, files of more than max_bytes, and pipes that give nothing.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Writes the pieces, one behind the other, to a temporary file in the same folder and renames it, so that readers see
// all or nothing. A path that is there already must be a regular file: a rename would replace a device, a pipe or a
// link.
Status WriteFile(const std::string& path, std::span<const std::string_view> pieces);
inline Status WriteFile(const std::string& path, std::string_view bytes) { return WriteFile(path, {&bytes, 1}); }

// Also one that cannot be looked at: opening it says why.
bool FileExists(const std::string& path);

// Whether these are the bytes of a Git LFS pointer: what stands in a repository's place of a large file that was not
// fetched.
bool IsLfsPointer(std::string_view bytes);
inline constexpr const char* kFetchFromLfs = "a Git LFS pointer, not the file itself; fetch that with `git lfs pull`";

// Which file it is, and in which state.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0, seconds = 0, nanoseconds = 0;  // time of the last change

  static FileStamp Of(const struct stat& st);
  bool operator==(const FileStamp&) const = default;
};

// A read-only, private map of a whole file. The bytes live as long as the object, unless others make the file shorter
// (dsv4/mapped_files.h).
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  const char* shown_path() const { return shown_path_.c_str(); }  // for a terminal
  bool HasChanged() const;

 private:
  MappedFile(std::string path, const uint8_t* data, int64_t size, const FileStamp& stamp);
  std::string path_, shown_path_;
  const uint8_t* data_;
  int64_t size_;
  FileStamp stamp_;
};

// A new file of known size, written through a shared map: no copy, and the kernel writes back while it is filled. Its
// room on the disk is taken when it is created, so filling cannot run out of it.
class NewMappedFile {
 public:
  // kInvalidArgument when `path` is there already; kResourceExhausted when the disk is full.
  static Result<std::unique_ptr<NewMappedFile>> Create(const std::string& path, int64_t size);
  ~NewMappedFile();
  NewMappedFile(const NewMappedFile&) = delete;
  NewMappedFile& operator=(const NewMappedFile&) = delete;

  uint8_t* data() { return data_; }
  int64_t size() const { return size_; }

  // Asks the kernel to begin writing these bytes to the disk.
  void StartWriting(int64_t begin, int64_t length);
  // Returns once everything is on the disk, and drops it from the page cache.
  Status Finish();

 private:
  NewMappedFile(std::string path, int fd, uint8_t* data, int64_t size);
  std::string path_;
  int fd_;
  uint8_t* data_;
  int64_t size_;
};

// Bytes that this user may still write to the disk that `dir` lies on; -1: unknown.
int64_t FreeDiskBytes(const std::string& dir);

}  // namespace dsv4
