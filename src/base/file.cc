#include "base/file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/input_file.h"
#include "base/str.h"

namespace dsv4 {

namespace {

Status ErrnoStatus(const std::string& path, const char* doing) {
  const int error = errno;
  const std::string message = StrCat("cannot ", doing, " '", path, "': ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return NotFound(message);
  if (error == ENOMEM || error == ENOSPC || error == EDQUOT || error == EFBIG || error == EMFILE)
    return ResourceExhausted(message);
  return InvalidArgument(message);
}

constexpr int kPipeWaitMs = 10000;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Opens a file that is not a folder, and sets its size (-1: a pipe or a device). Never waits for a named pipe's writer.
Status OpenForReading(const std::string& path, FileFrom from, Descriptor& d, int64_t& size) {
  const bool own = from == FileFrom::kProgram;
  d.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (own ? O_NOFOLLOW : 0));
  if (d.fd < 0 && own && errno == ELOOP)
    return InvalidArgument(StrCat("'", path, "' is a link, which is not followed here; name the file itself"));
  if (d.fd < 0) return ErrnoStatus(path, "open");
  struct stat st;
  if (::fstat(d.fd, &st) != 0) return ErrnoStatus(path, "read");
  if (S_ISDIR(st.st_mode)) return InvalidArgument(StrCat("'", path, "' is a folder, not a file"));
  size = S_ISREG(st.st_mode) ? static_cast<int64_t>(st.st_size) : -1;
  if (own && size < 0) return InvalidArgument(StrCat("'", path, "' is not a regular file"));
  return {};
}

// Reads the next bytes, also of a pipe; 0 at the end. Waits up to kPipeWaitMs for them.
Result<size_t> ReadMore(const std::string& path, int fd, char* buffer, size_t size) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&wait, 1, kPipeWaitMs);
    if (ready == 0)
      return InvalidArgument(StrCat("'", path, "' is a pipe and sent no data for ", kPipeWaitMs / 1000, " s"));
    const ssize_t n = ready > 0 ? ::read(fd, buffer, size) : -1;
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR && errno != EAGAIN) return ErrnoStatus(path, "read");
  }
}

// Creates a file next to `path` under a new name, with the mode that the process's umask leaves of 0666. Not mkostemp:
// its files have mode 0600, and a process can only read its umask by changing it, for all its threads. Returns -1 and
// errno.
int CreateTemporary(const std::string& path, std::string& temporary) {
  constexpr int kTries = 100;
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEF";
  for (int i = 0; i < kTries; ++i) {
    std::array<unsigned char, 6> random;
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) return -1;
    temporary = path + ".tmp.";
    for (const unsigned char c : random) temporary += kLetters[c % kLetters.size()];
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes, FileFrom from) {
  Descriptor d{-1};
  int64_t size = 0;
  DSV4_RETURN_IF_ERROR(OpenForReading(path, from, d, size));
  if (size > max_bytes) {
    return InvalidArgument(StrCat("'", path, "' has ", size, " bytes; the limit is ", max_bytes));
  }
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {  // also for pipes, whose size is unknown
    DSV4_ASSIGN_OR_RETURN(const size_t n, ReadMore(path, d.fd, buffer, sizeof(buffer)));
    if (n == 0 && size < 0 && bytes.empty()) {
      return InvalidArgument(StrCat("'", path, "' is not a regular file and gives no data"));
    }
    if (n == 0) return bytes;
    bytes.append(buffer, n);
    if (static_cast<int64_t>(bytes.size()) > max_bytes) {
      return InvalidArgument(StrCat("'", path, "' has more than ", max_bytes, " bytes"));
    }
  }
}

Status WriteFile(const std::string& path, std::span<const std::string_view> pieces) {
  struct stat st;
  if (::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
    return InvalidArgument(StrCat("cannot write '", path, "': it exists and is not a regular file"));
  }
  std::string temporary;
  Descriptor d{CreateTemporary(path, temporary)};
  if (d.fd < 0) return ErrnoStatus(path, "write");
  const auto fail = [&] {
    const Status status = ErrnoStatus(path, "write");
    ::unlink(temporary.c_str());
    return status;
  };
  for (const std::string_view piece : pieces) {
    for (size_t done = 0; done < piece.size();) {
      const ssize_t n = ::write(d.fd, piece.data() + done, piece.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail();
      done += static_cast<size_t>(n);
    }
  }
  if (::fsync(d.fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) return fail();
  return {};
}

bool FileExists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool IsLfsPointer(std::string_view bytes) { return bytes.starts_with("version https://git-lfs.github.com/spec/"); }

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  Descriptor d{-1};
  int64_t size = 0;
  DSV4_RETURN_IF_ERROR(OpenForReading(path, FileFrom::kUser, d, size));
  if (size < 0) return InvalidArgument(StrCat("'", path, "' is not a regular file"));
  if (size == 0) return DataLoss(StrCat("'", path, "' is empty"));
  struct stat st;
  if (::fstat(d.fd, &st) != 0) return ErrnoStatus(path, "read");
  void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, d.fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(path, "map");
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const uint8_t*>(data), size, FileStamp::Of(st)));
}

Result<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  Descriptor d{-1};
  int64_t size = 0;
  DSV4_RETURN_IF_ERROR(OpenForReading(path, FileFrom::kProgram, d, size));
  if (size == 0) return DataLoss(StrCat("'", path, "' is empty"));
  return std::unique_ptr<InputFile>(new InputFile(path, std::exchange(d.fd, -1), size));
}

InputFile::~InputFile() { ::close(fd_); }

Status InputFile::Read(int64_t begin, int64_t bytes, void* to) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<uint8_t*>(to) + done, static_cast<size_t>(bytes - done),
                              static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(path_, "read");
    if (n == 0) return DataLoss(StrCat("'", path_, "' became shorter while it was read"));
    done += n;
  }
  return {};
}

Result<std::unique_ptr<NewMappedFile>> NewMappedFile::Create(const std::string& path, int64_t size) {
  Descriptor d{::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (d.fd < 0) return ErrnoStatus(path, "create");
  const auto fail = [&](const char* doing) {
    const Status status = ErrnoStatus(path, doing);
    ::unlink(path.c_str());
    return status;
  };
  errno = ::posix_fallocate(d.fd, 0, static_cast<off_t>(size));
  if (errno != 0) return fail("reserve disk space for");
  void* data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, d.fd, 0);
  if (data == MAP_FAILED) return fail("map");
  const int fd = d.fd;
  d.fd = -1;
  return std::unique_ptr<NewMappedFile>(new NewMappedFile(path, fd, static_cast<uint8_t*>(data), size));
}

NewMappedFile::NewMappedFile(std::string path, int fd, uint8_t* data, int64_t size)
    : path_(std::move(path)), fd_(fd), data_(data), size_(size) {}

NewMappedFile::~NewMappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
  ::close(fd_);
}

void NewMappedFile::StartWriting(int64_t begin, int64_t length) {
  ::sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
}

Status NewMappedFile::Finish() {
  const bool synced = ::msync(data_, static_cast<size_t>(size_), MS_SYNC) == 0 && ::fsync(fd_) == 0;
  const Status status = synced ? Status{} : ErrnoStatus(path_, "write");
  ::munmap(data_, static_cast<size_t>(size_));
  data_ = nullptr;
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  return status;
}

int64_t FreeDiskBytes(const std::string& dir) {
  struct statvfs disk;
  if (::statvfs(dir.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

}  // namespace dsv4
