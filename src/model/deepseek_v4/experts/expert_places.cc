#include "model/deepseek_v4/experts/expert_places.h"

#include <algorithm>
#include <utility>

namespace dsv4::deepseek_v4 {

namespace {

// Or on the disk.
bool AnyOnHost(const ExpertPlacement& placement) { return !placement.CountByLayer().empty(); }

}  // namespace

int64_t ExpertPlaces::Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes,
                            int64_t num_experts) {
  if (!AnyOnHost(placement)) return 0;
  return ExpertStreams::Bytes(placement, expert_bytes, num_experts) + ExpertMoves::Bytes(expert_bytes) +
         DiskExperts::Bytes(placement, expert_bytes);
}

ExpertPlaces::ExpertPlaces(Weights& weights, ExpertPlacement placement, std::vector<int64_t> expert_bytes,
                           int64_t num_experts, ExpertHomes homes)
    : weights_(weights),
      placement_(placement),
      expert_bytes_(expert_bytes),
      num_experts_(num_experts),
      tally_(std::move(placement), std::move(expert_bytes), num_experts),
      homes_(std::move(homes)) {}

bool ExpertPlaces::Count(Device& device) {
  const auto bytes = static_cast<int64_t>(8 * num_counters());
  if (!counters_.Allocate(device, bytes) || !fetched_.Allocate(device, bytes)) return false;
  device.Clear(counters_.data(), bytes);
  const auto layers = static_cast<int64_t>(expert_bytes_.size());
  chosen_ = {counters_.data(), DType::kI64, {layers, num_experts_}};
  passes_ = {counters_.data() + bytes / 2, DType::kI64, {layers, num_experts_}};
  return true;
}

bool ExpertPlaces::UseHost(Device& device, ExpertComputing how, int64_t slots) {
  if (!AnyOnHost(placement_)) return true;
  if (!placement_.DiskByLayer().empty()) {
    const auto name = [this, &device](int64_t l, int64_t e, const ExpertWeights& now) { Tell(device, l, e, now); };
    disk_ = DiskExperts::Open(device, weights_, placement_, expert_bytes_, homes_, name);
    if (disk_ == nullptr) return false;
    for (int64_t l = 0; l < weights_.num_layers(); ++l)
      weights_.layers[static_cast<size_t>(l)].moe.supply = disk_->Of(l);
  }
  if (how.by != ExpertCompute::kGpu && !placement_.CountByLayer().empty()) {
    cpu_ = CpuExperts::Open(device, weights_, placement_, expert_bytes_, slots, how);
    if (cpu_ == nullptr) return false;
    for (int64_t l = 0; l < weights_.num_layers(); ++l)
      weights_.layers[static_cast<size_t>(l)].moe.partner = cpu_->Of(l);
  }
  streams_ = ExpertStreams::Open(device, weights_, placement_, expert_bytes_);
  for (int64_t l = 0; streams_ != nullptr && l < weights_.num_layers(); ++l)
    weights_.layers[static_cast<size_t>(l)].moe.fetched = streams_->Of(l);
  std::unique_ptr<CopyQueue> copies = OpenCopyQueue(device);
  const int64_t spare = ExpertMoves::Bytes(expert_bytes_);
  if (copies != nullptr && spare_.Allocate(device, spare))
    moves_ = std::make_unique<ExpertMoves>(std::move(copies), spare_.data(), spare);
  return true;
}

int64_t ExpertPlaces::BeginSwaps(std::span<const ExpertSwap> swaps) {
  if (moves_ == nullptr || moves_->busy()) return 0;
  std::vector<ExpertSwap> right;
  for (const ExpertSwap& s : swaps) {
    if (placement_.OnHost(s.layer, s.in) && placement_.OnDevice(s.layer, s.out)) right.push_back(s);
  }
  return moves_->Begin(right, weights_.layers);
}

bool ExpertPlaces::ContinueSwaps(Device& device) {
  if (moves_ == nullptr) return true;
  const std::span<const ExpertMove> arrived = moves_->Arrived();
  if (!arrived.empty()) {
    Close(device);  // the turn's copies began behind that
    FetchCounters(device);
    named_.assign(arrived.begin(), arrived.end());
    for (const ExpertMove& move : named_) Name(device, move);
    moves_->Named();
    if (!moves_->busy()) swaps_ += static_cast<int64_t>(named_.size());
  }
  if (moves_->busy() || !device.Reached(fetched_mark_)) return false;
  Close(device);
  return true;
}

void ExpertPlaces::Name(Device& device, const ExpertMove& move) {
  MoeWeights& moe = weights_.layers[static_cast<size_t>(move.layer)].moe;
  moe.experts[static_cast<size_t>(move.expert)] = move.to;
  placement_.Move(move.layer, move.expert, move.to_host);
  Tell(device, move.layer, move.expert, move.to);
}

void ExpertPlaces::Tell(Device& device, int64_t layer, int64_t expert, const ExpertWeights& now) {
  const MoeWeights& moe = weights_.layers[static_cast<size_t>(layer)].moe;
  if (moe.table != nullptr) device.Upload(const_cast<ExpertWeights*>(moe.table + expert), &now, sizeof(now));
  if (streams_ != nullptr) streams_->Follow(device, layer, expert, now);
}

void ExpertPlaces::FetchCounters(Device& device) {
  if (!chosen_) return;
  device.DownloadLater(fetched_.data(), counters_.data(), counters_.bytes());
  fetched_mark_ = device.Mark();
}

std::span<const uint64_t> ExpertPlaces::fetched() const {
  return {reinterpret_cast<const uint64_t*>(fetched_.data()), num_counters()};
}

void ExpertPlaces::Close(Device& device) {
  if (named_.empty()) return;
  if (chosen_ && device.Wait(fetched_mark_).ok()) tally_.Close(fetched());
  for (const ExpertMove& move : named_) tally_.Move(move.layer, move.expert, move.to_host);
  named_.clear();
}

void ExpertPlaces::AskForCounts(Device& device) {
  if (named_.empty()) FetchCounters(device);  // else what was fetched last is recent, and still needed
}

std::vector<uint64_t> ExpertPlaces::CountsAskedFor(Device& device) {
  if (!chosen_ || !device.Reached(fetched_mark_) || !device.Wait(fetched_mark_).ok()) return {};
  const auto counts = fetched().first(num_counters() / 2);
  return {counts.begin(), counts.end()};
}

Result<ExpertUse> ExpertPlaces::Use(Device& device) const {
  std::vector<uint64_t> counters(num_counters());
  if (chosen_) device.Download(counters.data(), counters_.data(), counters_.bytes());
  DSV4_RETURN_IF_ERROR(device.Synchronize());
  ExpertTally tally = tally_;
  if (!named_.empty() && chosen_) tally.Close(fetched());
  for (const ExpertMove& move : named_) tally.Move(move.layer, move.expert, move.to_host);
  ExpertUse use = tally.Use(counters);
  use.counted = static_cast<bool>(chosen_);
  if (use.counted) {
    counters.resize(num_counters() / 2);
    use.counts = {static_cast<int64_t>(expert_bytes_.size()), num_experts_, std::move(counters)};
  }
  use.swaps = swaps_;
  if (disk_ != nullptr) {
    const DiskUse& disk = disk_->use();
    use.chosen_resident += use.counted ? disk.found : 0;
    use.disk_reads = disk.reads, use.disk_bytes = disk.bytes, use.disk_seconds = disk.seconds;
  }
  if (cpu_ != nullptr) {  // what the CPU computed was counted as if it had been read
    use.cpu_experts = cpu_->use().experts, use.cpu_seconds = cpu_->use().seconds;
    use.fetched_bytes = std::max(use.fetched_bytes - cpu_->use().bytes, 0.0);
    if (const ExpertTimes& times = cpu_->times(); times.link > 0)
      use.cpu_rate = 1 / times.cpu, use.link_rate = 1 / times.link;
  }
  if (moves_ != nullptr) use.moved_bytes = static_cast<double>(moves_->moved_bytes());
  if (streams_ != nullptr) {
    use.fetched_bytes += static_cast<double>(streams_->fetched_bytes());
    use.wait_seconds = streams_->waited_seconds();
  }
  return use;
}

}  // namespace dsv4::deepseek_v4
