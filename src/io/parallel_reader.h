// ParallelReader: parts of mapped files read into memory by several threads, past the page cache where that helps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "dsv4/status.h"

namespace dsv4 {

// One read. Direct reads move whole blocks: a slot takes SlotBytes() from a block-aligned address on, and the bytes
// that were asked for begin PadBytes() into it.
struct FilePart {
  int32_t file = 0;
  int64_t offset = 0, bytes = 0;
};

class ParallelReader {
 public:
  static constexpr int64_t kBlock = 4096;  // of direct reads: file offsets, lengths and addresses
  static constexpr int kThreads = 16;      // reads in flight; they wait for the disk, so more than cores

  static int64_t PadBytes(const FilePart& part) { return part.offset % kBlock; }
  static int64_t SlotBytes(const FilePart& part) {
    return (PadBytes(part) + part.bytes + kBlock - 1) / kBlock * kBlock;
  }

  // Files that the file system does not read directly, and parts that the page cache holds already, are read through
  // it. Throws std::system_error where the system has no more threads.
  explicit ParallelReader(std::vector<std::shared_ptr<const MappedFile>> files, int num_threads = kThreads);
  ~ParallelReader();
  ParallelReader(const ParallelReader&) = delete;
  ParallelReader& operator=(const ParallelReader&) = delete;

  // Where `p` points to, if it leads into one of the files: part.file and part.offset.
  bool Locate(const uint8_t* p, FilePart* part) const;

  // Queues a read into `slot`, or a copy; they belong to group `group` (numbers go up).
  void Read(int64_t group, const FilePart& part, uint8_t* slot);
  void Copy(int64_t group, uint8_t* dst, const uint8_t* src, int64_t bytes);

  // Returns when everything of `group` and of those before it is there. Errors: kDataLoss, with the file's name;
  // kResourceExhausted, where there is no memory even to say what is wrong.
  Status Wait(int64_t group);

  // Drops what is queued and returns when no thread writes to anybody's memory any more. Nothing can be read after.
  void Stop();

  int64_t file_bytes() const { return file_bytes_; }      // read so far, without padding
  int64_t cached_bytes() const { return cached_bytes_; }  // of those: from the page cache
  bool direct() const { return direct_; }                 // some were read past it

 private:
  struct File {
    std::shared_ptr<const MappedFile> map;
    int plain = -1, direct = -1;  // descriptors
    bool residency_known = false;
  };
  struct Piece {
    int64_t group;
    int32_t file;        // -1: a copy
    int64_t begin, end;  // of the file, whole blocks (the last one may end behind the file)
    int64_t want_begin, want_end;
    uint8_t* dst;
    const uint8_t* src;
  };

  // Without its threads: where starting one throws, the destructor ends the others.
  enum class Idle : bool { kYes };
  ParallelReader(std::vector<std::shared_ptr<const MappedFile>>&& files, Idle);

  void Work();
  void Add(Piece piece);
  std::string Run(const Piece& piece);  // what went wrong, or ""
  bool InPageCache(const File& file, int64_t begin, int64_t end) const;

  std::vector<File> files_;
  std::vector<std::jthread> threads_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Piece> queue_;
  std::deque<std::pair<int64_t, int64_t>> unfinished_;  // group, pieces; in order
  std::string error_;
  bool out_of_memory_ = false;
  bool stop_ = false;
  std::atomic<int64_t> file_bytes_{0}, cached_bytes_{0};
  std::atomic<bool> direct_{false}, direct_works_{true};
};

// Bytes a second of parts of the files here and there, as ParallelReader reads them, measured now: 128 MiB of them at
// most. 0: there are none, or they cannot be read.
double ReadRateOf(const std::vector<std::shared_ptr<const MappedFile>>& files);

}  // namespace dsv4
