// Experts for which neither the device nor the host's memory has room: they stay in the checkpoint's files and come to
// a few places of the device when a pass has chosen them (docs/offload.md, docs/dev/decisions/0012-experts-on-disk.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Where experts lie that have no place: `sharding`'s part of theirs in `files`, weights of the whole model in mapped
// memory. Null: as the model's own weights name them, in the host's memory.
struct ExpertHomes {
  std::shared_ptr<const Weights> files;
  Sharding sharding;
};

struct DiskUse {
  uint64_t found = 0;  // choices of experts that were in a place when the pass began
  int64_t reads = 0;   // experts that were brought to one
  double bytes = 0;    // of the files, that this took
  double seconds = 0;  // that passes waited for them
};

// The host waits for a layer's choice, reads what is missing and packs it over what was used longest ago. All work is
// queued in the order of the device's, so no pass reads what another has in its place.
class DiskExperts {
 public:
  // Called when tables are to name another place of an expert, for the passes that are queued from then on.
  using Name = std::function<void(int64_t layer, int64_t expert, const ExpertWeights& now)>;

  // Of the device's memory; expert_bytes: of one expert of every layer, there.
  static int64_t Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes);
  // Likewise of the host's, pinned.
  static int64_t StagingBytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes);

  // Experts that `placement` has on the disk are named in `weights`, which outlive this, in a place that holds nothing
  // yet. Null: no room. `device` outlives this.
  static std::unique_ptr<DiskExperts> Open(Device& device, Weights& weights, const ExpertPlacement& placement,
                                           std::span<const int64_t> expert_bytes, const ExpertHomes& homes, Name name);
  ~DiskExperts();

  ExpertSupply* Of(int64_t layer);  // null: it has none on the disk
  // Has the expert in a place for the work that is queued next; nothing where it is not on the disk.
  void Bring(int64_t layer, int64_t expert);
  const DiskUse& use() const { return use_; }

 private:
  class Layer;
  struct Place {
    uint8_t* at = nullptr;
    int64_t layer = -1, expert = -1;  // which it holds; -1: none
    int64_t since = 0, used = 0;      // passes
  };
  struct Piece {  // of a copy from the files
    const uint8_t* from;
    uint8_t* to;
    int64_t rows, stride, bytes;
  };

  DiskExperts(Device& device, const ExpertHomes& homes, Name name);
  void BringChosen(const ExecContext& ctx, Layer& layer, std::span<const int32_t> chosen);
  Place& LeastUsed();
  void Read(const ExecContext& ctx, Layer& layer, std::span<const int64_t> experts);
  // Stages the expert's rows, queues their way to `place`, and names it there.
  void Fill(const ExecContext& ctx, Layer& layer, int64_t expert, Place& place);
  QuantTensor Stage(const QuantTensor& rows, Slice cut, uint8_t** to);
  void CopyPieces(ThreadPool* pool);

  static constexpr size_t kStages = 2;  // one is filled while the other is copied

  Device& device_;
  const ExpertHomes homes_;
  const Name name_;
  int64_t raw_bytes_ = 0;    // of an expert's rows, at most
  int64_t place_bytes_ = 0;  // of a place
  DeviceBuffer memory_;      // the places, then one expert's rows
  StagingBuffer staging_;
  int64_t marks_[kStages] = {};
  size_t stage_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;  // null: none on the disk
  std::vector<Place> places_;
  int64_t pass_ = 0;
  std::vector<int32_t> chosen_;
  std::vector<int64_t> missing_;
  std::vector<Piece> pieces_;
  DiskUse use_;
};

}  // namespace dsv4::deepseek_v4
