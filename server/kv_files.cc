#include "kv_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "memory_reserve.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxReads = 4;
constexpr std::chrono::milliseconds kPoll{20};

// The prompt is computed, or the file written another time.
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

void KvFiles::Write(std::shared_ptr<const SnapshotImage> image, const std::string& path) {
  const int64_t bytes = image->info().file_bytes;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_bytes_ == 0 || queued_bytes_ + bytes <= max_bytes_; });
    queued_bytes_ += bytes;
    tasks_.push_back({.path = path, .image = std::move(image)});
  }
  wake_.notify_all();
}

void KvFiles::Remove(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({.path = path, .image = nullptr});
  }
  wake_.notify_all();
}

bool KvFiles::Read(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (reads_.size() >= kMaxReads) return false;
    reads_.push_back(path);
  }
  wake_.notify_all();
  return true;
}

std::vector<KvFiles::Done> KvFiles::TakeDone() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void KvFiles::Drain(const std::function<bool()>& until) {
  std::unique_lock lock(mutex_);
  while (!tasks_.empty() && !until()) changed_.wait_for(lock, kPoll);
}

void KvFiles::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !reads_.empty() || !tasks_.empty(); });
    if (stop_) return;
    if (!reads_.empty()) {
      Done done{.kind = Done::Kind::kRead, .path = reads_.front(), .status = {}, .image = nullptr};
      lock.unlock();
      const bool enough = HasMemoryFor([&] {
        auto image = engine_.ReadSnapshot(done.path);
        if (image.ok()) {
          done.image = std::move(*image);
        } else {
          done.status = image.status();
        }
      });
      if (!enough) done.status = NoMemory(done.path);
      lock.lock();
      reads_.pop_front();
      done_.push_back(std::move(done));
    } else {
      const Task task = tasks_.front();  // it stays in the queue until it is done: Drain waits for it
      lock.unlock();
      Done done{.kind = Done::Kind::kWritten, .path = task.path, .status = {}, .image = task.image};
      if (task.image != nullptr) {
        if (!HasMemoryFor([&] { done.status = task.image->Write(task.path); })) done.status = NoMemory(done.path);
      } else {
        std::error_code ignored;
        std::filesystem::remove(task.path, ignored);
      }
      lock.lock();
      tasks_.pop_front();
      if (task.image != nullptr) {
        queued_bytes_ -= task.image->info().file_bytes;
        done_.push_back(std::move(done));
      }
      changed_.notify_all();
    }
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace dsv4::server
