// Files: whole-file reads and writes, read-only memory maps, and new mapped files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/status.h"

struct stat;

namespace dsv4 {

// The origin of a file. A user's file may be a link or a pipe. A file that this program wrote is a regular file.
// Anything else in its place is from another program, and is refused.
enum class FileFrom { kUser, kProgram };

// Returns the whole file as bytes. Refuses folders, files of more than max_bytes, and pipes that send no data.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes, FileFrom from = FileFrom::kUser);

// Writes the pieces, in order, to a temporary file in the same folder and renames it: readers see all or nothing. If
// `path` exists, it must be a regular file, because a rename would replace a device, a pipe or a link.
Status WriteFile(const std::string& path, std::span<const std::string_view> pieces);
inline Status WriteFile(const std::string& path, std::string_view bytes) { return WriteFile(path, {&bytes, 1}); }

// Also true for a path that cannot be examined: opening it reports the reason.
bool FileExists(const std::string& path);

// Whether these bytes are a Git LFS pointer. A repository has one in place of a large file that was not fetched.
bool IsLfsPointer(std::string_view bytes);
inline constexpr const char* kFetchFromLfs = "a Git LFS pointer, not the file itself; fetch that with `git lfs pull`";

// Identifies a file and its state.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0, seconds = 0, nanoseconds = 0;  // time of the last change

  static FileStamp Of(const struct stat& st);
  bool operator==(const FileStamp&) const = default;
};

// A read-only, private map of a whole file. The bytes live as long as the object, unless another process truncates the
// file (dsv4/mapped_files.h).
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

// A new file of known size, written through a shared map: without a copy, and the kernel writes back while it is
// filled. Create reserves the disk space, so filling cannot run out of it.
class NewMappedFile {
 public:
  // kInvalidArgument: `path` exists. kResourceExhausted: the disk is full.
  static Result<std::unique_ptr<NewMappedFile>> Create(const std::string& path, int64_t size);
  ~NewMappedFile();
  NewMappedFile(const NewMappedFile&) = delete;
  NewMappedFile& operator=(const NewMappedFile&) = delete;

  uint8_t* data() { return data_; }
  int64_t size() const { return size_; }

  // Asks the kernel to begin writing these bytes to the disk.
  void StartWriting(int64_t begin, int64_t length);
  // Returns when everything is on the disk. Drops it from the page cache.
  Status Finish();

 private:
  NewMappedFile(std::string path, int fd, uint8_t* data, int64_t size);
  std::string path_;
  int fd_;
  uint8_t* data_;
  int64_t size_;
};

// Bytes that this user may still write to the disk of `dir`; -1: unknown.
int64_t FreeDiskBytes(const std::string& dir);

}  // namespace dsv4
