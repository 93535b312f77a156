// Which weights lie in the host's memory, or on its disk, where the device does not hold all routed experts
// (docs/offload.md).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/deepseek_v4/schema/schema.h"
#include "model/expert_swap.h"

namespace dsv4::deepseek_v4 {

// By default all are on the device; experts of draft modules always are. It is the same for every rank: each keeps its
// slices of an expert, and its embedding table, in one place.
class ExpertPlacement {
 public:
  bool EmbeddingOnHost() const { return embedding_on_host_; }
  bool OnHost(int64_t layer, int64_t expert) const {
    return !on_host_.empty() && on_host_[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
  }
  bool OnHost(const WeightRef& ref) const {
    if (ref.row->kind == WeightKind::kEmbedding) return ref.stage < 0 && embedding_on_host_;
    return ref.expert >= 0 && ref.stage < 0 && OnHost(ref.layer, ref.expert);
  }
  // In the checkpoint's files only: neither on the device nor on the host.
  bool OnDisk(int64_t layer, int64_t expert) const {
    return !on_disk_.empty() && on_disk_[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
  }
  bool OnDisk(const WeightRef& ref) const { return ref.expert >= 0 && ref.stage < 0 && OnDisk(ref.layer, ref.expert); }
  bool OnDevice(int64_t layer, int64_t expert) const { return !OnHost(layer, expert) && !OnDisk(layer, expert); }
  // Only where some are on the host.
  void Move(int64_t layer, int64_t expert, bool to_host) {
    on_host_[static_cast<size_t>(layer)][static_cast<size_t>(expert)] = to_host;
  }
  std::vector<int64_t> CountByLayer() const;  // on the host; empty: none anywhere
  std::vector<int64_t> DiskByLayer() const;   // on the disk; likewise
  // Takes experts from the host to the disk until they are at least `bytes`, or all: of every layer as many, its least
  // chosen ones, as each layer needs room for all that it has there. The other arguments as Coldest's.
  void LeaveOnDisk(std::span<const int64_t> expert_bytes, int64_t bytes, std::span<const uint64_t> counts);

  // Moves weights to the host until they are at least `bytes`, or all: the embedding table, of which a token reads one
  // row, then experts, the least chosen for their size first, those of equal rank from the last one of every layer on,
  // so that layers have as many. expert_bytes[l]: of one expert of layer l, of which there are `num_experts`. counts:
  // how often each was chosen [L, E]; empty: they all count alike. Of a layer `slots` stay on the device, at most.
  static ExpertPlacement Coldest(int64_t embedding_bytes, std::span<const int64_t> expert_bytes, int64_t num_experts,
                                 int64_t bytes, std::span<const uint64_t> counts,
                                 int64_t slots = std::numeric_limits<int64_t>::max());

 private:
  bool embedding_on_host_ = false;
  std::vector<std::vector<bool>> on_host_;  // by layer and expert; empty: none
  std::vector<std::vector<bool>> on_disk_;  // likewise
};

// Bytes that one token is expected to read from the host: of `chosen` experts a layer those that lie there, by their
// share of `counts` (empty, or a layer without any: by their number).
double HostBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts);
// The same from the disk, as many bytes as on the device.
double DiskBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts);

// Swaps that bring to the device what is clearly chosen more often than what leaves it; those that win most first, at
// most `most`. chosen [L, E]: how often, lately.
std::vector<ExpertSwap> BetterPlaces(const ExpertPlacement& placement, std::span<const double> chosen,
                                     int64_t num_experts, int64_t most);

// bytes_of(matrix), summed over an expert's matrices: of one expert of every layer of the model.
template <typename BytesOf>
std::vector<int64_t> BytesOfExperts(const Weights& weights, const BytesOf& bytes_of) {
  std::vector<int64_t> bytes;
  for (int64_t l = 0; l < weights.num_layers(); ++l) {
    const ExpertWeights& e = weights.layers[static_cast<size_t>(l)].moe.experts.front();
    bytes.push_back(bytes_of(e.gate) + bytes_of(e.up) + bytes_of(e.down));
  }
  return bytes;
}

}  // namespace dsv4::deepseek_v4
