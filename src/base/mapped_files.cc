// Read-only maps of files, and their state when the files change.
#include "dsv4/mapped_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file.h"

namespace dsv4 {

namespace {

// All maps of the process. A signal handler reads it without the mutex, so it may miss a map that is ending. Files
// beyond kMaxWatched are mapped, but not watched.
constexpr size_t kMaxWatched = 4096;
std::mutex watched_mutex;
std::array<std::atomic<const MappedFile*>, kMaxWatched> watched;

}  // namespace

const char* MappedFileAt(const void* address) {
  const auto* byte = static_cast<const uint8_t*>(address);
  for (const std::atomic<const MappedFile*>& entry : watched) {
    const MappedFile* file = entry.load();
    if (file != nullptr && byte >= file->data() && byte < file->data() + file->size()) return file->shown_path();
  }
  return nullptr;
}

std::vector<std::string> ChangedMappedFiles() {
  std::vector<std::string> changed;
  const std::lock_guard lock(watched_mutex);
  for (const std::atomic<const MappedFile*>& entry : watched) {
    const MappedFile* file = entry.load();
    if (file != nullptr && file->HasChanged()) changed.push_back(file->path());
  }
  return changed;
}

MappedFile::MappedFile(std::string path, const uint8_t* data, int64_t size, const FileStamp& stamp)
    : path_(std::move(path)), shown_path_(path_), data_(data), size_(size), stamp_(stamp) {
  std::replace_if(
      shown_path_.begin(), shown_path_.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  const std::lock_guard lock(watched_mutex);
  const auto place = std::find(watched.begin(), watched.end(), nullptr);
  if (place != watched.end()) *place = this;
}

MappedFile::~MappedFile() {
  {
    const std::lock_guard lock(watched_mutex);
    const auto place = std::find(watched.begin(), watched.end(), this);
    if (place != watched.end()) *place = nullptr;
  }
  ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

FileStamp FileStamp::Of(const struct stat& st) {
  return {.device = st.st_dev,
          .inode = st.st_ino,
          .size = st.st_size,
          .seconds = st.st_mtim.tv_sec,
          .nanoseconds = st.st_mtim.tv_nsec};
}

bool MappedFile::HasChanged() const {
  struct stat st;
  if (::stat(path_.c_str(), &st) != 0) return false;  // the name is gone, the file is not
  const FileStamp now = FileStamp::Of(st);
  return now.device == stamp_.device && now.inode == stamp_.inode && now != stamp_;
}

}  // namespace dsv4
