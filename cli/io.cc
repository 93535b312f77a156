#include "io.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "dsv4/mapped_files.h"
#include "errors.h"
#include "terminal_text.h"

namespace dsv4::cli {

namespace {

std::atomic<int> g_interrupts{0};
std::array<int, 2> g_wake_pipe = {-1, -1};  // the handler writes a byte to it to end a wait for input
// State that the handler restores when it ends the process: a temporary file, a colour on the terminal.
std::array<char, 4096> g_temporary_path{};
std::atomic<bool> g_has_temporary{false};
std::atomic<bool> g_stdout_is_terminal{false};

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void OnSignal(int) {
  if (g_interrupts.fetch_add(1) == 0) {
    const int code = errno;
    [[maybe_unused]] const ssize_t ignored = ::write(g_wake_pipe[1], "", 1);
    errno = code;
    return;
  }
  if (g_has_temporary) ::unlink(g_temporary_path.data());
  if (g_stdout_is_terminal) {
    constexpr std::string_view kReset = "\033[0m\n";
    [[maybe_unused]] const ssize_t ignored = ::write(STDOUT_FILENO, kReset.data(), kReset.size());
  }
  ::_exit(kExitInterrupted);
}

void Say(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void OnBusError(int, siginfo_t* info, void*) {
  const char* path = MappedFileAt(info->si_addr);
  if (path == nullptr) {
    ::signal(SIGBUS, SIG_DFL);  // the access fails again and ends the process
    return;
  }
  Say("dsv4: error: '");
  Say(path);
  Say("' cannot be read: it became shorter while it was in use, or its disk failed; start the program again\n");
  ::_exit(kExitFailed);
}

std::string ErrnoText(int code) { return std::strerror(code); }

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Like read(), but throws QuietExit after Ctrl-C. No signal is lost, not even one between the check of the flag and the
// wait, or one that a worker thread of the engine handles.
size_t ReadSome(int fd, std::span<char> buffer, const std::string& name) {
  while (true) {
    std::array<pollfd, 2> wait = {pollfd{.fd = fd, .events = POLLIN, .revents = 0},
                                  pollfd{.fd = g_wake_pipe[0], .events = POLLIN, .revents = 0}};
    const int ready = ::poll(wait.data(), wait.size(), -1);
    StopIfInterrupted();
    if (ready < 0) continue;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EBADF) throw RunError(name + " is closed; open it, or give a file");
    if (errno != EINTR) throw RunError("cannot read " + name + ": " + ErrnoText(errno));
  }
}

std::string ReadAll(int fd, const std::string& name) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const size_t n = ReadSome(fd, buffer, name);
    if (n == 0) return text;
    text.append(buffer.data(), n);
  }
}

// A temporary file, which the destructor removes if it was not renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) : path_(target + ".tmp." + std::to_string(::getpid())) {
    if (path_.size() < g_temporary_path.size()) {
      std::memcpy(g_temporary_path.data(), path_.c_str(), path_.size() + 1);
      g_has_temporary = true;
    }
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!renamed_) ::unlink(path_.c_str());
    g_has_temporary = false;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool is_open() const { return fd_ >= 0; }
  bool WriteAndRename(std::string_view bytes, const std::string& target) {
    if (!WriteAll(fd_, bytes)) return false;
    const int closed = ::close(fd_);
    fd_ = -1;
    renamed_ = closed == 0 && ::rename(path_.c_str(), target.c_str()) == 0;
    return renamed_;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool renamed_ = false;
};

// Returns true for devices, pipes and links (such as /dev/stdout), which a rename would replace.
bool MustBeWrittenInPlace(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

// Returns the open descriptor if `path` is /dev/stdout or /dev/stderr, otherwise -1. Opening the path again would
// truncate the file that the stream is redirected to.
int OpenStreamAt(const std::string& path) {
  struct stat named, open;
  if (::stat(path.c_str(), &named) != 0) return -1;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::fstat(fd, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) return fd;
  }
  return -1;
}

bool WriteInPlace(const std::string& path, std::string_view bytes) {
  if (const int stream = OpenStreamAt(path); stream >= 0) return WriteAll(stream, bytes);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  const bool done = WriteAll(fd, bytes);
  const int code = errno;
  const bool closed = ::close(fd) == 0;  // some file systems report a full disk only now
  if (!done) errno = code;
  return done && closed;
}

// Throws if no file can be created in the folder of `path`.
void CheckFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw RunError("cannot write " + path + ": folder " + folder + ": " + ErrnoText(errno));
  }
}

}  // namespace

bool StdinIsTerminal() { return ::isatty(STDIN_FILENO) != 0; }
bool StdoutIsTerminal() { return ::isatty(STDOUT_FILENO) != 0; }
bool StderrIsTerminal() { return ::isatty(STDERR_FILENO) != 0; }
bool StderrIsStdout() {
  struct stat out, err;
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
         out.st_ino == err.st_ino;
}
namespace {

size_t ColumnsOf(int fd) {
  winsize size = {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

size_t StdoutColumns() { return ColumnsOf(STDOUT_FILENO); }
size_t StderrColumns() { return ColumnsOf(STDERR_FILENO); }

// Opens each with the wrong access mode, so that a use fails as for a closed stream.
void HoldClosedStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int held = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void InstallSignalHandlers() {
  g_stdout_is_terminal = StdoutIsTerminal();
  if (::pipe2(g_wake_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw RunError("pipe: " + ErrnoText(errno));
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = OnBusError;
  ::sigaction(SIGBUS, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` then fails like a full disk
}

bool Interrupted() { return g_interrupts > 0; }
void StopIfInterrupted() {
  if (Interrupted()) throw QuietExit{kExitInterrupted};
}
void ClearInterrupt() {
  std::array<char, 16> bytes;
  [[maybe_unused]] const ssize_t ignored = ::read(g_wake_pipe[0], bytes.data(), bytes.size());
  g_interrupts = 0;
}

void Print(std::string_view text) {
  if (!g_stdout_is_terminal) return PrintRaw(text);
  PrintRaw(ForTerminal(text));
}

void PrintRaw(std::string_view text) {
  if (WriteAll(STDOUT_FILENO, text)) return;
  if (errno == EPIPE) throw QuietExit{kExitClosedPipe};
  throw RunError("cannot write to standard output: " + ErrnoText(errno));
}

void PrintError(std::string_view text) { WriteAll(STDERR_FILENO, text); }

void PrintNote(std::string_view text) { PrintError("dsv4: note: " + Printable(text) + "\n"); }

size_t ReadStdinSome(std::span<char> buffer) { return ReadSome(STDIN_FILENO, buffer, "standard input"); }

bool LineReader::Next(std::string* line) {
  while (true) {
    const size_t end = held_.find('\n', start_);
    if (end != std::string::npos) {
      line->assign(held_, start_, end - start_);
      start_ = end + 1;
      return true;
    }
    held_.erase(0, start_);
    start_ = 0;
    if (ended_) {
      if (held_.empty()) return false;
      *line = std::move(held_);
      held_.clear();
      return true;
    }
    std::array<char, 1 << 16> buffer;
    const size_t n = ReadStdinSome(buffer);
    if (n == 0) {
      ended_ = true;
      continue;
    }
    held_.append(buffer.data(), n);
  }
}

int ForEachLine(const std::function<Result<std::string>(const std::string&)>& convert) {
  constexpr size_t kFlushBytes = 1 << 16;
  LineReader reader;
  std::string line;
  std::string out;
  for (int64_t number = 1;; ++number) {
    if (!reader.Next(&line)) break;
    const Result<std::string> converted = convert(line);
    if (!converted.ok()) {
      Print(out);
      throw RunError("line " + std::to_string(number) + ": " + converted.status().message());
    }
    out += *converted;
    out += '\n';
    if (out.size() >= kFlushBytes || reader.WouldWait()) {
      Print(out);
      out.clear();
    }
  }
  Print(out);
  return kExitDone;
}

std::string ReadStdin() { return ReadAll(STDIN_FILENO, "standard input"); }

std::string ReadInput(const std::string& path) {
  if (path == "-") return ReadStdin();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw RunError("cannot open " + path + ": " + ErrnoText(errno));
  std::string text;
  try {
    text = ReadAll(fd, path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  return text;
}

void CheckWritable(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) throw RunError("cannot write " + path + ": it is a folder; give a file name");
    if (::access(path.c_str(), W_OK) != 0) throw RunError("cannot write " + path + ": " + ErrnoText(errno));
    return;
  }
  CheckFolder(path);
}

std::string ResolveReplaceableFile(const std::string& path) {
  CheckWritable(path);
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return path;
  std::error_code error;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error || ::lstat(target.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw RunError("cannot write " + path + ": it is not a regular file; name a file, or a new one");
  }
  CheckFolder(target);
  return target;
}

void WriteOutput(const std::string& path, std::string_view bytes) {
  bool done = false;
  int code = 0;
  if (MustBeWrittenInPlace(path)) {
    done = WriteInPlace(path, bytes);
    code = errno;
  } else {
    TemporaryFile file(path);
    done = file.is_open() && file.WriteAndRename(bytes, path);
    code = errno;
  }
  if (!done) throw RunError("cannot write " + path + ": " + ErrnoText(code));
}

void NoteInvalidUtf8(std::string_view text, std::string_view what) {
  const size_t place = FindInvalidUtf8(text);
  if (place == std::string_view::npos) return;
  PrintNote(std::string(what) + " is not valid UTF-8 (first at byte " + std::to_string(place) +
            "); invalid parts are read as U+FFFD");
}

}  // namespace dsv4::cli
