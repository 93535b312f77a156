#include <utility>

#include "engine.h"
#include "errors.h"

namespace dsv4::python {

EngineCore::EngineCore()
    : worker_([this] {
        slots_.clear();  // sessions end before their engine
        engine_.reset();
      }) {}

void EngineCore::Load(const EngineOptions& options) {
  const auto loaded = std::make_shared<Result<std::unique_ptr<Engine>>>(Internal("not loaded"));
  worker_.Run([loaded, options](const std::atomic<bool>& stop) {
    EngineOptions stopped = options;
    stopped.progress = [&stop](const Progress&) { return !stop; };
    *loaded = Engine::Load(stopped);
  });
  engine_ = Must(std::move(*loaded));
  stop_step_ = [this] { engine_->SetStopped(true); };
  info_ = engine_->info();
}

void EngineCore::AskToStop() {
  if (!serves_)
    worker_.AskToStop(stop_step_);  // the end of the thread frees the engine, which a service would still use
}

void EngineCore::Close() {
  closed_ = true;
  AskToStop();
  const std::lock_guard lock(closing_);
  if (close_service_) close_service_();
  close_service_ = nullptr;  // the service may end before the engine
  worker_.Close();
}

void EngineCore::Check() const {
  if (!in_this_process()) RaiseForked("this engine");
  if (closed_) Raise(InvalidArgument("the engine is closed: load it again"));
  if (serves_) {
    Raise(InvalidArgument("this engine belongs to an LLM: load an Engine of its own for sessions and steps"));
  }
}

void EngineCore::Run(std::function<Status(Engine& engine, const std::atomic<bool>& stop)> call) {
  Check();
  const auto status = std::make_shared<Status>();
  worker_.Run(
      [this, status, call = std::move(call)](const std::atomic<bool>& stop) {
        engine_->SetStopped(false);  // of a call before
        *status = stop ? Cancelled("the call was stopped") : call(*engine_, stop);
      },
      stop_step_);
  python::Check(*status);
}

void EngineCore::Drop(SlotPtr slot) {
  worker_.Post([this, slot = std::move(slot)] { slots_.erase(slot); });
}

Engine& EngineCore::GiveToService(std::function<void()> close) {
  Check();
  serves_ = true;
  close_service_ = std::move(close);
  return *engine_;
}

Held::~Held() {
  if (slot == nullptr) return;  // moved from
  if (core->in_this_process()) {
    core->Drop(std::move(slot));
  } else {
    new SlotPtr(std::move(slot));  // never destroyed: its engine has no threads here
  }
}

}  // namespace dsv4::python
