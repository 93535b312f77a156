#include "threads.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include <pthread.h>

#include "errors.h"

namespace dsv4::python {

namespace {

using std::chrono::milliseconds;

constexpr int kPollMs = 25;             // between two looks at signals
constexpr milliseconds kStopTime{200};  // for a call that was interrupted
constexpr milliseconds kExitTime{10'000};

std::atomic<bool> closing{false};
std::atomic<int> num_released{0};

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Closable>> members;
};
// Never destroyed: objects may outlive the static variables of this library.
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

struct Deferred {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
Deferred& deferred() {
  static auto* const all = new Deferred;
  return *all;
}

}  // namespace

void WatchForks() {
  registry();
  deferred();
  pthread_atfork(nullptr, nullptr, [] {
    // Another thread of the parent may have held them. The thread that forks holds the GIL and none of them.
    new (&registry().mutex) std::mutex;
    new (&deferred().mutex) std::mutex;
    num_released = 0;
  });
}

ReleasedGil::Counted::Counted() {
  ++num_released;
  if (!closing) return;
  --num_released;
  Raise(Cancelled("the interpreter ends"));
}
ReleasedGil::Counted::~Counted() { --num_released; }
ReleasedGil::ReleasedGil() = default;

bool WaitForSignals(const std::function<bool(int wait_ms)>& done) {
  while (true) {
    {
      const ReleasedGil released;
      if (done(kPollMs)) return true;
    }
    if (PyErr_CheckSignals() != 0) return false;
  }
}

void Register(const std::shared_ptr<Closable>& closable) {
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().members, [](const auto& member) { return member.expired(); });
  registry().members.push_back(closable);
}

void CloseAll() {
  closing = true;
  std::vector<std::shared_ptr<Closable>> members;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& member : registry().members) {
      auto alive = member.lock();
      if (alive != nullptr && alive->in_this_process()) members.push_back(std::move(alive));
    }
  }
  for (const auto& member : members) member->AskToStop();
  const nb::gil_scoped_release released;
  const auto until = std::chrono::steady_clock::now() + kExitTime;
  while (num_released > 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  for (const auto& member : members) member->Close();
}

DeferredRef::~DeferredRef() {
  const std::lock_guard lock(deferred().mutex);
  deferred().objects.push_back(object_);
}

void ReleaseDeferred() {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(deferred().mutex);
    objects.swap(deferred().objects);
  }
  for (PyObject* const object : objects) Py_DECREF(object);
}

Worker::Worker(std::function<void()> at_end) : at_end_(std::move(at_end)), thread_([this] { Loop(); }) {}

void Worker::Run(Task task, const std::function<void()>& on_stop) {
  ReleaseDeferred();
  const auto job = std::make_shared<Job>();
  job->task = std::move(task);
  Add(job);
  const auto done_within = [&](milliseconds time) {
    std::unique_lock lock(job->mutex);
    return job->changed.wait_for(lock, time, [&] { return job->done; });
  };
  if (!WaitForSignals([&](int wait_ms) { return done_within(milliseconds(wait_ms)); })) {
    const nb::python_error interrupted;
    {
      // Under the lock: the next task must not be stopped instead.
      const std::lock_guard lock(mutex_);
      job->stop = true;
      if (on_stop && running_ == job) on_stop();
    }
    {
      const nb::gil_scoped_release released;
      done_within(kStopTime);
    }
    throw interrupted;
  }
  if (job->dropped) Raise(Cancelled("the engine was closed during the call"));
  if (job->error) std::rethrow_exception(job->error);
}

void Worker::Post(std::function<void()> task) {
  const auto job = std::make_shared<Job>();
  job->task = [task = std::move(task)](const std::atomic<bool>&) { task(); };
  Add(job);
}

void Worker::Add(JobPtr job) {
  std::unique_lock lock(mutex_);
  if (closing_) {
    lock.unlock();
    return Finish(*job, true);
  }
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

void Worker::Finish(Job& job, bool dropped) {
  job.task = nullptr;  // what it owns ends in the worker's thread
  const std::lock_guard lock(job.mutex);
  job.done = true;
  job.dropped = dropped;
  job.changed.notify_all();
}

void Worker::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    running_ = std::move(jobs_.front());
    jobs_.pop_front();
    const bool dropped = closing_;
    lock.unlock();
    if (!dropped) {
      try {
        running_->task(running_->stop);
      } catch (...) {
        running_->error = std::current_exception();
      }
    }
    Finish(*running_, dropped);
    lock.lock();
    running_ = nullptr;
  }
  lock.unlock();
  at_end_();
}

void Worker::AskToStop(const std::function<void()>& on_stop) {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  if (running_ != nullptr) {
    running_->stop = true;
    if (on_stop) on_stop();
  }
  wake_.notify_one();
}

void Worker::Close() {
  AskToStop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace dsv4::python
