#include "model/deepseek_v4/experts/expert_streams.h"

#include <algorithm>
#include <map>
#include <utility>

#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/expert_matrices.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kMostOfAPlace = int64_t{96} << 20;  // long enough copies, and little of a GPU's memory

int64_t TableBytes(int64_t num_experts) {
  return AlignedBytes(num_experts * static_cast<int64_t>(sizeof(ExpertMatrices))) + AlignedBytes(num_experts * 4);
}

// Room for gate and up, two thirds, of a layer's experts on the host, or of as many as fit kMostOfAPlace; for a whole
// expert at least.
int64_t PlaceBytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes) {
  const std::vector<int64_t> counts = placement.CountByLayer();
  int64_t bytes = 0;
  for (size_t l = 0; l < counts.size(); ++l) {
    if (counts[l] > 0) bytes = std::max({bytes, expert_bytes[l], CeilDiv(2 * counts[l] * expert_bytes[l], 3)});
  }
  return AlignedBytes(std::min(bytes, kMostOfAPlace));
}

int64_t PackedBytes(const QuantTensor& m) {
  return AlignedBytes(PackedCodeBytes(m)) + AlignedBytes(PackedScaleBytes(m));
}

// Adds the copies of `m` to `*to`, and names the place in `m`.
void AddCopies(QuantTensor& m, uint8_t** to, FetchPart& part) {
  const int64_t codes = PackedCodeBytes(m), scales = PackedScaleBytes(m);
  part.push_back({*to, m.codes, codes});
  m.codes = *to;
  *to += AlignedBytes(codes);
  if (scales == 0) return;
  part.push_back({*to, m.block_scale, scales});
  m.block_scale = *to;
  *to += AlignedBytes(scales);
}

}  // namespace

// Its parts in the schedule: gate and up of each group, then down of each.
class ExpertStreams::LayerFetch : public ExpertFetch {
 public:
  LayerFetch(FetchSchedule& schedule, int64_t first, int num_groups)
      : schedule_(schedule), first_(first), num_groups_(num_groups) {}
  void Await(bool up, int group) override {
    part_ = first_ + (up ? 0 : num_groups_) + group;
    schedule_.Await(part_);
  }
  void Done() override { schedule_.Done(part_); }

 private:
  FetchSchedule& schedule_;
  const int64_t first_;
  const int num_groups_;
  int64_t part_ = 0;
};

struct ExpertStreams::Layer {
  // Where what lies in a place of the host is brought to, and with which group.
  struct Fetched {
    ExpertMatrices matrices;
    int32_t group;
  };

  int64_t first = 0;                         // of its parts
  std::vector<ExpertMatrices> matrices;      // as the kernels' table
  std::map<const uint8_t*, Fetched> places;  // by the gate's codes on the host
  std::vector<int32_t> group_of;
  int num_groups = 0;
  std::unique_ptr<LayerFetch> fetch;
  FetchedExperts fetched;

  // Appends the layer's parts; false where the places are too small.
  bool Plan(const ExpertPlacement& placement, int64_t l, uint8_t* memory, int64_t place_bytes,
            std::vector<FetchPart>& parts);
};

bool ExpertStreams::Layer::Plan(const ExpertPlacement& placement, int64_t l, uint8_t* memory, int64_t place_bytes,
                                std::vector<FetchPart>& parts) {
  std::vector<size_t> on_host;
  for (size_t e = 0; e < matrices.size(); ++e) {
    if (placement.OnHost(l, static_cast<int64_t>(e))) on_host.push_back(e);
  }
  const ExpertMatrices& m = matrices.front();
  const int64_t each = std::max(PackedBytes(m.gate) + PackedBytes(m.up), PackedBytes(m.down));
  const int64_t of_group = place_bytes / each, count = static_cast<int64_t>(on_host.size());
  if (of_group == 0 || CeilDiv(count, of_group) > kMaxFetchGroups) return false;
  num_groups = static_cast<int>(CeilDiv(count, of_group));
  first = static_cast<int64_t>(parts.size());
  group_of.assign(matrices.size(), 0);  // those on the device are multiplied with the first group
  parts.resize(parts.size() + 2 * static_cast<size_t>(num_groups));
  for (int64_t i = 0; i < count; ++i) {
    ExpertMatrices& expert = matrices[on_host[static_cast<size_t>(i)]];
    const uint8_t* const at_host = expert.gate.codes;
    const int64_t group = i / of_group, at = i % of_group * each, up = first + group, down = up + num_groups;
    group_of[on_host[static_cast<size_t>(i)]] = static_cast<int32_t>(group);
    uint8_t* to = memory + up % FetchSchedule::kPlaces * place_bytes + at;
    AddCopies(expert.gate, &to, parts[static_cast<size_t>(up)]);
    AddCopies(expert.up, &to, parts[static_cast<size_t>(up)]);
    to = memory + down % FetchSchedule::kPlaces * place_bytes + at;
    AddCopies(expert.down, &to, parts[static_cast<size_t>(down)]);
    places[at_host] = {expert, static_cast<int32_t>(group)};
  }
  return true;
}

ExpertStreams::ExpertStreams() = default;
ExpertStreams::~ExpertStreams() = default;

int64_t ExpertStreams::Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes,
                             int64_t num_experts) {
  const std::vector<int64_t> counts = placement.CountByLayer();
  const int64_t layers = static_cast<int64_t>(counts.size()) - std::count(counts.begin(), counts.end(), 0);
  return FetchSchedule::kPlaces * PlaceBytes(placement, expert_bytes) + layers * TableBytes(num_experts);
}

std::unique_ptr<ExpertStreams> ExpertStreams::Open(Device& device, const Weights& weights,
                                                   const ExpertPlacement& placement,
                                                   std::span<const int64_t> expert_bytes) {
  std::unique_ptr<CopyQueue> copies = OpenCopyQueue(device);
  const auto num_experts = static_cast<int64_t>(weights.layers.front().moe.experts.size());
  std::unique_ptr<ExpertStreams> s(new ExpertStreams());
  if (copies == nullptr || !device.Context(nullptr, false).gpu.IsHopper()) return nullptr;
  if (!s->memory_.Allocate(device, Bytes(placement, expert_bytes, num_experts))) return nullptr;
  const int64_t place_bytes = PlaceBytes(placement, expert_bytes);
  const std::vector<int64_t> counts = placement.CountByLayer();
  std::vector<FetchPart> parts;
  for (size_t l = 0; l < counts.size(); ++l) {
    s->layers_.push_back(counts[l] > 0 ? std::make_unique<Layer>() : nullptr);
    if (counts[l] == 0) continue;
    s->layers_.back()->matrices = weights.layers[l].moe.experts;
    if (!s->layers_.back()->Plan(placement, static_cast<int64_t>(l), s->memory_.data(), place_bytes, parts))
      return nullptr;
  }
  s->schedule_ = std::make_unique<FetchSchedule>(std::move(copies), std::move(parts));
  uint8_t* table = s->memory_.data() + FetchSchedule::kPlaces * place_bytes;
  for (const std::unique_ptr<Layer>& layer : s->layers_) {
    if (layer == nullptr) continue;
    const int64_t bytes = num_experts * static_cast<int64_t>(sizeof(ExpertMatrices));
    uint8_t* const groups = table + AlignedBytes(bytes);
    device.Upload(table, layer->matrices.data(), bytes);
    device.Upload(groups, layer->group_of.data(), num_experts * 4);
    layer->fetch = std::make_unique<LayerFetch>(*s->schedule_, layer->first, layer->num_groups);
    layer->fetched = {.fetch = layer->fetch.get(),
                      .matrices = {reinterpret_cast<const ExpertMatrices*>(table), layer->matrices.size()},
                      .group_of = reinterpret_cast<const int32_t*>(groups),
                      .num_groups = layer->num_groups};
    table += TableBytes(num_experts);
  }
  if (!device.Synchronize().ok()) return nullptr;
  return s;
}

void ExpertStreams::Follow(Device& device, int64_t layer, int64_t expert, const ExpertWeights& now) {
  if (Of(layer) == nullptr) return;
  Layer& l = *layers_[static_cast<size_t>(layer)];
  const auto e = static_cast<size_t>(expert);
  l.matrices[e] = now;
  l.group_of[e] = 0;
  if (const auto fetched = l.places.find(now.gate.codes); fetched != l.places.end()) {
    l.matrices[e] = InPlaceOf(now, fetched->second.matrices);
    l.group_of[e] = fetched->second.group;
    schedule_->Forget();
  }
  device.Upload(const_cast<ExpertMatrices*>(&l.fetched.matrices[e]), &l.matrices[e], sizeof(ExpertMatrices));
  device.Upload(const_cast<int32_t*>(l.fetched.group_of + e), &l.group_of[e], sizeof(int32_t));
}

const FetchedExperts* ExpertStreams::Of(int64_t layer) const {
  const auto l = static_cast<size_t>(layer);
  return l < layers_.size() && layers_[l] != nullptr ? &layers_[l]->fetched : nullptr;
}

}  // namespace dsv4::deepseek_v4
