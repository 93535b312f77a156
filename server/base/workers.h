// A few threads for work that would block an I/O loop for too long: reading JSON, rendering, tokenizing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dsv4::server {

class Workers {
 public:
  // `num_for_short`: additional threads that run short calls only, so that long calls never occupy all threads. Throws
  // std::system_error if the system has no more threads.
  Workers(int num_threads, int num_for_short, size_t max_queued);
  ~Workers();  // finishes the queued calls

  enum class Length { kShort, kLong };
  // Returns false if the queue is full. A call that runs out of memory is dropped, and its thread continues.
  bool Post(Length length, std::function<void()> call);

 private:
  // Starts no thread. If starting one throws later, the destructor ends the others.
  explicit Workers(size_t max_queued) : max_queued_(max_queued) {}

  struct Call {
    Length length;
    std::function<void()> run;
  };
  void Run(bool short_only);
  std::deque<Call>::iterator Next(bool short_only);

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Call> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dsv4::server
