// A few threads for what takes longer than an I/O loop should stand still: reading JSON, rendering, tokenising.
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
  // num_for_short: further threads, for short calls alone; so long calls never keep them all.
  // Throws std::system_error where the system has no more threads.
  Workers(int num_threads, int num_for_short, size_t max_queued);
  ~Workers();  // finishes what is queued

  enum class Length { kShort, kLong };
  // False: too much is queued already. A call that runs out of memory is dropped, and the thread goes on.
  bool Post(Length length, std::function<void()> call);

 private:
  // Without its threads: where starting one throws, the destructor ends the others.
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
