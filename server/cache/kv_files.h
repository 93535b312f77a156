// The folder of KV snapshots: its lock, and the thread that writes, reads and removes the files, so that no stream
// waits for a disk.
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

// Holds a folder for one server until it is destroyed or the process ends. Two servers would not know each other's
// files and would exceed the limit together.
class FolderLock {
 public:
  // Errors: kInvalidArgument (another server uses the folder, or it cannot be written).
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
    std::shared_ptr<const SnapshotImage>
        image;  // the image that was written; the image that was read, if the read succeeded
  };

  // Requires that the engine's fingerprint has been computed. Images that wait to be written take at most `max_bytes`
  // of memory, unless there is only one. `on_done` is called on the thread whenever TakeDone has a new result.
  KvFiles(Engine& engine, int64_t max_bytes, std::function<void()> on_done);
  ~KvFiles();  // drops the queued tasks, finishes the file that is being written

  // Queues a task; Write waits for room in the queue. Tasks for the same path are carried out in order, except that
  // reads overtake the others.
  void Write(std::shared_ptr<const SnapshotImage> image, const std::string& path);
  void Remove(const std::string& path);
  // Returns false if too many reads are queued.
  bool Read(const std::string& path);

  // Returns results in the order in which the tasks ended. Removals have no result.
  std::list<Done> TakeDone();

  // Waits until all tasks are done, or until `until` returns true. `until` is called at intervals.
  void Drain(const std::function<bool()>& until);

 private:
  static std::list<Done> NewTask(Done::Kind kind, const std::string& path, std::shared_ptr<const SnapshotImage> image);
  void CarryOut(Done& task) const;
  void Run();

  Engine& engine_;
  const int64_t max_bytes_;
  const std::function<void()> on_done_;

  std::mutex mutex_;  // guards all members below
  std::condition_variable wake_, changed_;
  std::list<Done> tasks_, reads_;  // including the task that is being carried out
  std::list<Done> done_;
  int64_t queued_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
