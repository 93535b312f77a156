// One thread per rank of an engine. The caller runs rank 0, so that one rank needs no thread and no waiting.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

class RankThreads {
 public:
  explicit RankThreads(int count);  // throws std::system_error if the system has no more threads
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int count() const { return static_cast<int>(statuses_.size()); }

  // Calls job(rank) on every rank's thread at once and returns when all have ended, with the first rank's error, if
  // any. An exception becomes the rank's status: std::bad_alloc kResourceExhausted, any other kInternal. `failed` is
  // called with a rank's error on its thread at once, while others may wait for that rank; it must not throw. Not
  // reentrant.
  Status Run(const std::function<Status(int rank)>& job,
             const std::function<void(int rank, const Status& why)>& failed = {});

 private:
  // Starts no threads. If starting one throws, the destructor ends the others.
  enum class Idle : bool { kYes };
  RankThreads(int count, Idle);
  void Work(int rank);
  void Do(int rank);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<Status(int)>* job_ = nullptr;
  const std::function<void(int, const Status&)>* failed_ = nullptr;
  uint64_t generation_ = 0;  // incremented for every job
  int running_ = 0;
  bool stop_ = false;
  std::vector<Status> statuses_;   // one per rank; only its thread uses it while a job runs
  std::vector<Status> no_memory_;  // the statuses of ranks whose memory ran out; made in advance
  std::vector<std::thread> threads_;
};

}  // namespace dsv4
