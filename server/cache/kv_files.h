// The folder of KV snapshots: who uses it, and the thread that writes, reads and removes files of KV snapshots, so that
// no stream waits for a disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "dsv4/engine.h"
#include "dsv4/snapshot.h"

namespace dsv4::server {

// Holds a folder for one server: two would not know of each other's files and exceed the limit together. Until it is
// destroyed or the process ends.
class FolderLock {
 public:
  // Errors: kInvalidArgument (another server has the folder, or it cannot be written).
  static Result<std::unique_ptr<FolderLock>> Take(const std::string& folder);
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  const int fd_;
};

class KvFiles {
 public:
  struct Done {
    enum class Kind { kWritten, kRead, kRemoved } kind;
    std::string path;
    Status status;
    std::shared_ptr<const SnapshotImage> image;  // what was written; what was read, where that went well
  };

  // `engine`'s fingerprint has been asked for. Images that wait to be written take at most `max_bytes` of memory, or
  // are one. `on_done` is called by the thread whenever TakeDone has something new.
  KvFiles(Engine& engine, int64_t max_bytes, std::function<void()> on_done);
  ~KvFiles();  // what is queued is dropped, the file that is being written is finished

  // Queued; waits for room in the queue. Of the same path, calls are carried out in order, but that reads overtake.
  void Write(std::shared_ptr<const SnapshotImage> image, const std::string& path);
  void Remove(const std::string& path);
  // False: too many are being read.
  bool Read(const std::string& path);

  // In the order in which they ended; what was removed is not told.
  std::list<Done> TakeDone();

  // Waits until everything is written, or until `until` says so, which is asked now and then.
  void Drain(const std::function<bool()>& until);

 private:
  static std::list<Done> NewTask(Done::Kind kind, const std::string& path, std::shared_ptr<const SnapshotImage> image);
  void CarryOut(Done& task) const;
  void Run();

  Engine& engine_;
  const int64_t max_bytes_;
  const std::function<void()> on_done_;

  std::mutex mutex_;  // of all below
  std::condition_variable wake_, changed_;
  std::list<Done> tasks_, reads_;  // the one that is being carried out included
  std::list<Done> done_;
  int64_t queued_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
