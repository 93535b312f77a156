// The engine, its sessions and snapshots for Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <nanobind/nanobind.h>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "threads.h"

namespace dsv4::python {

// A session or a snapshot. Only the engine's thread uses and destroys what it holds.
struct Slot {
  std::unique_ptr<Session> session;
  std::shared_ptr<const KvSnapshot> snapshot;
  std::atomic<int64_t> length{0};  // tokens
};
using SlotPtr = std::shared_ptr<Slot>;

// A loaded engine and the thread that runs its calls.
class EngineCore : public Closable {
 public:
  EngineCore();
  ~EngineCore() override { Close(); }

  // Loads the model. With the GIL.
  void Load(const EngineOptions& options);

  void AskToStop() override;
  void Close() override;

  // Throws if the engine cannot be used by this call. With the GIL.
  void Check() const;

  // Runs `call` in the engine's thread and throws its error. The caller may leave before its end (Worker::Run): `call`
  // owns what it uses.
  void Run(std::function<Status(Engine& engine, const std::atomic<bool>& stop)> call);

  // Keeps the slot until Drop, or until the engine is closed. In the engine's thread.
  void Keep(const SlotPtr& slot) { slots_.insert(slot); }
  // Any thread.
  void Drop(SlotPtr slot);

  // Gives the engine to a service, for good: other calls are refused afterwards. `close` ends the service. With the
  // GIL.
  Engine& GiveToService(std::function<void()> close);

  const ModelInfo& info() const { return info_; }
  bool closed() const { return closed_; }

 private:
  std::unique_ptr<Engine> engine_;   // of the worker's thread
  std::function<void()> stop_step_;  // ends a step of the engine; set after Load
  std::set<SlotPtr> slots_;          // of the worker's thread
  ModelInfo info_ = {};
  std::atomic<bool> closed_{false};
  bool serves_ = false;
  std::mutex closing_;  // one Close at a time
  std::function<void()> close_service_;
  Worker worker_;
};
using CorePtr = std::shared_ptr<EngineCore>;

// What Python holds of a session or a snapshot.
struct Held {
  Held(CorePtr core, SlotPtr slot) : core(std::move(core)), slot(std::move(slot)) {}
  ~Held();
  Held(Held&&) = default;
  Held(const Held&) = delete;

  CorePtr core;
  SlotPtr slot;
};
struct PySession : Held {
  using Held::Held;
};
struct PySnapshot : Held {
  using Held::Held;
};
struct PyEngine {
  CorePtr core;
};

void BindEngine(nb::module_& m);

}  // namespace dsv4::python
