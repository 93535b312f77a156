// Calls that leave the GIL: signals, forks and the end of the interpreter.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nanobind/nanobind.h>

namespace dsv4::python {

namespace nb = nanobind;

// Releases the GIL in a scope. The end of the interpreter waits for the scopes: a thread that waits for the GIL
// afterwards would be ended inside C++ code, which aborts the process. Throws CancelledError if the end has begun.
class ReleasedGil {
 public:
  ReleasedGil();

 private:
  struct Counted {
    Counted();
    ~Counted();
  } counted_;  // ends after the GIL is held again
  nb::gil_scoped_release released_;
};

// Calls `done(wait)` without the GIL until it returns true; `wait` is the time in milliseconds that it may take. In
// between, runs Python's signal handlers. Returns false, with the handler's exception set, if a handler raised one.
bool WaitForSignals(const std::function<bool(int wait_ms)>& done);

// Something that has threads. The end of the interpreter closes all.
class Closable {
 public:
  virtual ~Closable() = default;

  virtual void AskToStop() = 0;  // must not wait
  virtual void Close() = 0;      // ends the threads. Called without the GIL

  bool in_this_process() const { return getpid() == pid_; }

 private:
  const pid_t pid_ = getpid();
};
void Register(const std::shared_ptr<Closable>& closable);

// Makes a closable that the end of the interpreter knows. In the child of a fork it is never destroyed, because its
// threads exist only in the parent.
template <typename T, typename... Args>
std::shared_ptr<T> MakeClosable(Args&&... args) {
  const std::shared_ptr<T> made(new T(std::forward<Args>(args)...), [](T* closable) {
    if (closable->in_this_process()) delete closable;
  });
  Register(made);
  return made;
}

// For atexit, with the GIL.
void CloseAll();

// Makes the child of a fork forget the threads of its parent. Called once.
void WatchForks();

// A reference that may be dropped without the GIL: the object is released by a later call from Python.
class DeferredRef {
 public:
  explicit DeferredRef(nb::object object) : object_(object.release().ptr()) {}
  ~DeferredRef();
  DeferredRef(const DeferredRef&) = delete;
  DeferredRef& operator=(const DeferredRef&) = delete;

 private:
  PyObject* object_;
};
void ReleaseDeferred();  // with the GIL

// A thread that runs the calls on one engine, one after the other.
class Worker {
 public:
  using Task = std::function<void(const std::atomic<bool>& stop)>;

  // `at_end` is the last call of the thread.
  explicit Worker(std::function<void()> at_end);
  ~Worker() { Close(); }

  // Runs `task` and waits for it, without the GIL. Rethrows its exception. If a signal handler raises one (Ctrl-C),
  // sets the task's `stop` and calls `on_stop`. Then throws the handler's exception when the task has ended, but after
  // at most 0.2 s. The task then ends before the next one begins. So `task` must own all that it uses.
  void Run(Task task, const std::function<void()>& on_stop = {});

  // Runs `task` later, or never if the worker closes. Any thread, with or without the GIL.
  void Post(std::function<void()> task);

  // `on_stop` as in Run.
  void AskToStop(const std::function<void()>& on_stop = {});
  // Ends the running task early, drops the others, and joins the thread.
  void Close();

 private:
  struct Job {
    Task task;
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false, dropped = false;
    std::exception_ptr error;
  };
  using JobPtr = std::shared_ptr<Job>;

  void Add(JobPtr job);
  void Loop();
  static void Finish(Job& job, bool dropped);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<JobPtr> jobs_;
  JobPtr running_;
  bool closing_ = false;
  const std::function<void()> at_end_;
  std::thread thread_;
};

}  // namespace dsv4::python
