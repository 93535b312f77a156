#include "server/metrics/expert_watch.h"

#include <utility>

#include "dsv4/experts.h"

namespace dsv4::server {

namespace {

constexpr std::chrono::seconds kLookEvery{5}, kWriteEvery{60};

}  // namespace

ExpertWatch::ExpertWatch(Engine& engine, Metrics& metrics, std::string file)
    : engine_(engine),
      metrics_(metrics),
      file_(std::move(file)),
      next_write_(std::chrono::steady_clock::now() + kWriteEvery) {}

Status ExpertWatch::Look(bool idle) {
  const auto now = std::chrono::steady_clock::now();
  if (!counts_ || (!idle && now < next_look_)) return {};
  next_look_ = now + kLookEvery;
  const bool write = !file_.empty() && !failed_ && now >= next_write_;
  if (write) next_write_ = now + kWriteEvery;
  return Take(write);
}

Status ExpertWatch::Finish() { return counts_ ? Take(!file_.empty()) : Status{}; }

Status ExpertWatch::Take(bool write) {
  const Result<ExpertUse> use = engine_.expert_use();
  if (!use.ok()) return {};  // the engine's own trouble: steps tell of it
  counts_ = use->counted;
  if (!counts_) return {};
  metrics_.SetExperts(*use);
  if (!write) return {};
  const Status written = WriteExpertCounts(file_, use->counts);
  failed_ = !written.ok();
  return written;
}

}  // namespace dsv4::server
