#include "server/metrics/expert_watch.h"

#include <algorithm>
#include <utility>

namespace dsv4::server {

ExpertWatch::ExpertWatch(Engine& engine, Metrics& metrics, std::string file, ExpertCounts kept,
                         std::chrono::milliseconds write_every)
    : engine_(engine), metrics_(metrics), write_every_(write_every), next_write_(Clock::now() + write_every) {
  const Result<ExpertUse> use = engine_.expert_use();
  counts_ = !use.ok() || use->counted;
  if (use.ok() && use->counted) metrics_.SetExperts(*use);
  if (!file.empty()) file_.emplace(std::move(file), std::move(kept), use.ok() ? use->counts : ExpertCounts{});
}

Status ExpertWatch::Look(bool idle, Clock::time_point now) {
  if (!counts_ || (!idle && now < std::min(next_look_, next_write_))) return {};
  next_look_ = now + kLookEvery;
  const bool write = now >= next_write_;
  if (write) next_write_ = now + write_every_;
  const bool told = failed_;
  const Status status = Take(write);
  return told ? Status{} : status;
}

Status ExpertWatch::Finish() { return counts_ ? Take(/*write=*/true) : Status{}; }

std::optional<ExpertWatch::Clock::time_point> ExpertWatch::next_write() const {
  return counts_ && gains_ ? std::optional(next_write_) : std::nullopt;
}

Status ExpertWatch::Take(bool write) {
  const Result<ExpertUse> use = engine_.expert_use();
  if (!use.ok()) return {};  // steps report the engine's own errors
  counts_ = use->counted;
  if (!counts_) return {};
  metrics_.SetExperts(*use);
  if (!file_) return {};
  gains_ = file_->Update(use->counts);
  if (!write || !gains_) return {};
  const Status written = file_->Write();
  gains_ = failed_ = !written.ok();
  return written;
}

}  // namespace dsv4::server
