// ParallelReader: several threads read parts of mapped files into memory, past the page cache if that is faster.
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

// One read. Direct reads move whole blocks: a slot takes SlotBytes() from a block-aligned address; the requested bytes
// begin at PadBytes().
struct FilePart {
  int32_t file = 0;
  int64_t offset = 0, bytes = 0;
};

class ParallelReader {
 public:
  static constexpr int64_t kBlock = 4096;  // file offsets, lengths and addresses of direct reads are multiples
  static constexpr int kThreads = 16;      // reads in flight; more than cores, because they wait for the disk

  static int64_t PadBytes(const FilePart& part) { return part.offset % kBlock; }
  static int64_t SlotBytes(const FilePart& part) {
    return (PadBytes(part) + part.bytes + kBlock - 1) / kBlock * kBlock;
  }

  // Reads through the page cache if the file system has no direct reads, or if the page cache already holds the part.
  // Throws std::system_error if the system has no more threads.
  explicit ParallelReader(std::vector<std::shared_ptr<const MappedFile>> files, int num_threads = kThreads);
  ~ParallelReader();
  ParallelReader(const ParallelReader&) = delete;
  ParallelReader& operator=(const ParallelReader&) = delete;

  // True if `p` points into one of the files. Sets part.file and part.offset.
  bool Locate(const uint8_t* p, FilePart* part) const;

  // Queues a read or a copy into `slot` (`dst`), as part of group `group`. Group numbers rise.
  void Read(int64_t group, const FilePart& part, uint8_t* slot);
  void Copy(int64_t group, uint8_t* dst, const uint8_t* src, int64_t bytes);

  // Returns when `group` and all earlier groups are done. Errors: kDataLoss, with the file's name; kResourceExhausted:
  // no memory, not even for an error text.
  Status Wait(int64_t group);

  // Drops the queue and returns when no thread writes to a caller's memory any more. No read is possible afterwards.
  void Stop();

  int64_t file_bytes() const { return file_bytes_; }      // read so far, without padding
  int64_t cached_bytes() const { return cached_bytes_; }  // the part of file_bytes from the page cache
  bool direct() const { return direct_; }                 // whether some reads bypassed the page cache

 private:
  struct File {
    std::shared_ptr<const MappedFile> map;
    int plain = -1, direct = -1;  // descriptors
    bool residency_known = false;
  };
  struct Piece {
    int64_t group;
    int32_t file;        // -1: a copy
    int64_t begin, end;  // of the file, in whole blocks (the last one may end after the file)
    int64_t want_begin, want_end;
    uint8_t* dst;
    const uint8_t* src;
  };

  // Starts no threads. If starting one throws, the destructor ends the others.
  enum class Idle : bool { kYes };
  ParallelReader(std::vector<std::shared_ptr<const MappedFile>>&& files, Idle);

  void Work();
  void Add(Piece piece);
  std::string Run(const Piece& piece);  // returns the error, or ""
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

// Measures how fast ParallelReader reads parts of the files at several places, up to 128 MiB in all. Returns bytes per
// second. 0: there are no files, or they cannot be read.
double ReadRateOf(const std::vector<std::shared_ptr<const MappedFile>>& files);

}  // namespace dsv4
