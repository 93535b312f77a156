#include "server/base/kept_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace dsv4::server {

namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { (void)Close(); }
  File(const File&) = delete;
  int fd() const { return fd_; }
  bool Close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Result<KeptFolder> KeptFolder::Open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return InvalidArgument("cannot make the folder '" + path + "': " + std::strerror(errno));
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return KeptFolder(fd);
  if (errno == ELOOP || errno == ENOTDIR)
    return InvalidArgument("'" + path + "' is a link or no folder; remove it, and the server makes the folder");
  return InvalidArgument("cannot open the folder '" + path + "': " + std::strerror(errno));
}

KeptFolder::KeptFolder(KeptFolder&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

KeptFolder::~KeptFolder() {
  if (fd_ >= 0) ::close(fd_);
}

std::vector<KeptFolder::Entry> KeptFolder::List() const {
  std::vector<Entry> entries;
  const int fd = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = fd < 0 ? nullptr : ::fdopendir(fd);
  if (folder == nullptr) {
    if (fd >= 0) ::close(fd);
    return entries;
  }
  while (const dirent* entry = ::readdir(folder)) {
    struct stat st;
    if (::fstatat(fd_, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
    entries.push_back({.name = entry->d_name,
                       .bytes = static_cast<int64_t>(st.st_size),
                       .changed_ns = int64_t{st.st_mtim.tv_sec} * 1000000000 + st.st_mtim.tv_nsec});
  }
  ::closedir(folder);
  return entries;
}

std::optional<std::string> KeptFolder::Read(const std::string& name, size_t max_bytes) const {
  // O_NONBLOCK: opening a pipe does not wait for its writer.
  const File file(::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (file.fd() < 0 || ::fstat(file.fd(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 0 ||
      static_cast<uint64_t>(st.st_size) > max_bytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(st.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::read(file.fd(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;  // it became shorter
    done += static_cast<size_t>(n);
  }
  return bytes;
}

bool KeptFolder::Write(const std::string& name, std::span<const std::string_view> pieces) const {
  const std::string temporary = name + ".tmp";
  ::unlinkat(fd_, temporary.c_str(), 0);
  File file(::openat(fd_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.fd() < 0) return false;
  bool good = true;
  for (const std::string_view piece : pieces) good = good && WriteAll(file.fd(), piece);
  if (!file.Close() || !good || ::renameat(fd_, temporary.c_str(), fd_, name.c_str()) != 0) {
    ::unlinkat(fd_, temporary.c_str(), 0);
    return false;
  }
  return true;
}

Status KeptFolder::Remove(const std::string& name) const {
  if (::unlinkat(fd_, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return Internal("the file cannot be removed: " + std::string(std::strerror(errno)));
}

Status KeptFolder::Sync() const {
  if (::fsync(fd_) == 0 || errno == EINVAL) return {};  // EINVAL: this file system keeps nothing
  return Internal("the disk did not confirm a change of the folder: " + std::string(std::strerror(errno)));
}

}  // namespace dsv4::server
