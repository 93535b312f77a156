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
  Workers(int num_threads, size_t max_queued);
  ~Workers();  // finishes what is queued

  // False: too much is queued already. A call that runs out of memory is dropped, and the thread goes on.
  bool Post(std::function<void()> call);

 private:
  void Run();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dsv4::server
