// The placement of weights that a device does not hold: in host memory or on disk (docs/offload.md).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/deepseek_v4/schema/schema.h"
#include "model/expert_swap.h"

namespace dsv4::deepseek_v4 {

// By default all weights are on the device. Experts of draft modules always are. Every rank has the same placement: it
// keeps its slices of an expert, and its embedding table, in one place.
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
  // Whether the expert is in the checkpoint's files only: neither on the device nor on the host.
  bool OnDisk(int64_t layer, int64_t expert) const {
    return !on_disk_.empty() && on_disk_[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
  }
  bool OnDisk(const WeightRef& ref) const { return ref.expert >= 0 && ref.stage < 0 && OnDisk(ref.layer, ref.expert); }
  bool OnDevice(int64_t layer, int64_t expert) const { return !OnHost(layer, expert) && !OnDisk(layer, expert); }
  // Requires: some experts are on the host.
  void Move(int64_t layer, int64_t expert, bool to_host) {
    on_host_[static_cast<size_t>(layer)][static_cast<size_t>(expert)] = to_host;
  }
  std::vector<int64_t> CountByLayer() const;  // number on the host; empty: none in any layer
  std::vector<int64_t> DiskByLayer() const;   // number on the disk; empty: none in any layer
  // Moves experts from the host to the disk until they have at least `bytes`, or all are moved. Each layer loses the
  // same number of experts, its least chosen ones, because each layer needs memory for all its experts there. The other
  // arguments are Coldest's.
  void LeaveOnDisk(std::span<const int64_t> expert_bytes, int64_t bytes, std::span<const uint64_t> counts);

  // Moves weights to the host until they have at least `bytes`, or all are moved. The embedding table is first, because
  // a token reads one row of it. Then experts, those with the fewest choices per byte first. Ties are taken from the
  // last expert of every layer backwards, so that layers keep equal numbers. expert_bytes[l]: size of one expert of
  // layer l, which has `num_experts`. counts [L, E]: how often each was chosen; empty: all equal. At most `slots`
  // experts per layer stay on the device.
  static ExpertPlacement Coldest(int64_t embedding_bytes, std::span<const int64_t> expert_bytes, int64_t num_experts,
                                 int64_t bytes, std::span<const uint64_t> counts,
                                 int64_t slots = std::numeric_limits<int64_t>::max());

 private:
  bool embedding_on_host_ = false;
  std::vector<std::vector<bool>> on_host_;  // by layer and expert; empty: none
  std::vector<std::vector<bool>> on_disk_;  // by layer and expert; empty: none
};

// The bytes that one token is expected to read from the host. A token reads `chosen` experts per layer. Experts on the
// host are weighted by their share of `counts`; without counts, or for a layer without any, by their number.
double HostBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts);
// The same for the disk; an expert there has the same size as on the device.
double DiskBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts);

// Swaps that move experts to the device that are chosen clearly more often than the experts they replace. At most
// `most`, those with the largest gain first. chosen [L, E]: recent numbers of choices.
std::vector<ExpertSwap> BetterPlaces(const ExpertPlacement& placement, std::span<const double> chosen,
                                     int64_t num_experts, int64_t most);

// bytes_of(matrix), summed over an expert's matrices, for one expert of every layer of the model.
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
