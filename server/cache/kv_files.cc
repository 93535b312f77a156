#include "server/cache/kv_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "server/base/memory_reserve.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxReads = 4;
constexpr std::chrono::milliseconds kPoll{20};

// The caller computes the prompt instead, or writes the file at another time.
Status NoMemory(const std::string& path) { return ResourceExhausted("no memory to read or write '" + path + "'"); }

}  // namespace

Result<std::unique_ptr<FolderLock>> FolderLock::Take(const std::string& folder) {
  const std::string path = folder + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return InvalidArgument("--kv-disk: '" + path + "' cannot be opened: " + std::strerror(errno));
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return std::unique_ptr<FolderLock>(new FolderLock(fd));
  const int error = errno;
  ::close(fd);
  if (error != EWOULDBLOCK)
    return InvalidArgument("--kv-disk: '" + path + "' cannot be locked: " + std::strerror(error));
  return InvalidArgument("--kv-disk: another server uses the folder '" + folder + "'; give each server one of its own");
}

FolderLock::~FolderLock() { ::close(fd_); }

KvFiles::KvFiles(Engine& engine, int64_t max_bytes, std::function<void()> on_done)
    : engine_(engine), max_bytes_(max_bytes), on_done_(std::move(on_done)), thread_([this] { Run(); }) {}

KvFiles::~KvFiles() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// Allocates the task together with its result, so that a lack of memory is an error of the caller and not of the
// thread.
std::list<KvFiles::Done> KvFiles::NewTask(Done::Kind kind, const std::string& path,
                                          std::shared_ptr<const SnapshotImage> image) {
  std::list<Done> task;
  task.push_back({.kind = kind, .path = path, .status = NoMemory(path), .image = std::move(image)});
  return task;
}

void KvFiles::Write(std::shared_ptr<const SnapshotImage> image, const std::string& path) {
  const int64_t bytes = image->info().file_bytes;
  std::list<Done> task = NewTask(Done::Kind::kWritten, path, std::move(image));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_bytes_ == 0 || queued_bytes_ + bytes <= max_bytes_; });
    queued_bytes_ += bytes;
    tasks_.splice(tasks_.end(), task);
  }
  wake_.notify_all();
}

void KvFiles::Remove(const std::string& path) {
  std::list<Done> task = NewTask(Done::Kind::kRemoved, path, nullptr);
  {
    const std::lock_guard lock(mutex_);
    tasks_.splice(tasks_.end(), task);
  }
  wake_.notify_all();
}

bool KvFiles::Read(const std::string& path) {
  std::list<Done> task = NewTask(Done::Kind::kRead, path, nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (reads_.size() >= kMaxReads) return false;
    reads_.splice(reads_.end(), task);
  }
  wake_.notify_all();
  return true;
}

std::list<KvFiles::Done> KvFiles::TakeDone() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void KvFiles::Drain(const std::function<bool()>& until) {
  std::unique_lock lock(mutex_);
  while (!tasks_.empty() && !until()) changed_.wait_for(lock, kPoll);
}

void KvFiles::CarryOut(Done& task) const {
  if (task.kind == Done::Kind::kRemoved) {
    ::unlink(task.path.c_str());
    return;
  }
  HasMemoryFor([&] {  // out of memory: the status stays as NewTask set it
    if (task.kind == Done::Kind::kWritten) {
      task.status = task.image->Write(task.path);
      return;
    }
    auto image = engine_.ReadSnapshot(task.path);
    task.status = image.status();
    if (image.ok()) task.image = std::move(*image);
  });
}

// Allocates only in CarryOut, which handles a lack of memory: no caller would catch an exception of this thread.
void KvFiles::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !reads_.empty() || !tasks_.empty(); });
    if (stop_) return;
    std::list<Done>& queue = reads_.empty() ? tasks_ : reads_;
    Done& task = queue.front();  // stays in the queue until it is done, because Drain waits for it
    lock.unlock();
    CarryOut(task);
    lock.lock();
    if (task.kind == Done::Kind::kWritten) queued_bytes_ -= task.image->info().file_bytes;
    if (task.kind == Done::Kind::kRemoved) {
      queue.pop_front();
    } else {
      done_.splice(done_.end(), queue, queue.begin());
    }
    changed_.notify_all();
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace dsv4::server
