// Experts that change places between the host's memory and the device's, beside the device's work (docs/offload.md).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/copy_queue.h"
#include "model/deepseek_v4/schema/weights.h"
#include "model/expert_swap.h"

namespace dsv4::deepseek_v4 {

// An expert on its way: read at `from` until its bytes are at `to`, which is the same matrices elsewhere.
struct ExpertMove {
  int64_t layer = 0, expert = 0;
  ExpertWeights from, to;
  bool to_host = false;
};

// Pairs take three turns together:
//   1. the experts of the host are copied to spare places of the device,
//   2. those of the device go where these were on the host,
//   3. the first go from the spare places to where the second were.
// When a turn's copies have run, tables name the new places, between two passes; the next turn's copies, which write
// to the old ones, wait for the passes before that. So no pass waits, and none reads what is being written.
class ExpertMoves {
 public:
  // Of the device's memory, for the spare places; expert_bytes: of one expert of every layer.
  static int64_t Bytes(std::span<const int64_t> expert_bytes);

  // `spare`: as many bytes; it outlives this, which waits for copies that are under way.
  ExpertMoves(std::unique_ptr<CopyQueue> copies, uint8_t* spare, int64_t spare_bytes)
      : copies_(std::move(copies)), spare_(spare), spare_bytes_(spare_bytes) {}

  bool busy() const { return turn_ < kTurns; }
  // Not while busy. Of a pair `in` is read on the host, `out` on the device. Takes kMostSwapsAtOnce at most, and leaves
  // out pairs whose experts cannot lie in each other's place, or in a spare one, or are under way already. How many
  // began.
  int64_t Begin(std::span<const ExpertSwap> swaps, std::span<const LayerWeights> layers);
  // Moves whose copies have run; empty: none yet, or none is under way.
  std::span<const ExpertMove> Arrived();
  // Tables name the new places of what has arrived, for all passes that are queued from now on.
  void Named();

  int64_t moved_bytes() const { return moved_bytes_; }  // over the link, both ways

 private:
  static constexpr size_t kTurns = 3;

  bool Holds(int64_t layer, int64_t expert) const;
  void Start();

  const std::unique_ptr<CopyQueue> copies_;
  uint8_t* const spare_;
  const int64_t spare_bytes_;
  std::array<std::vector<ExpertMove>, kTurns> turns_;
  size_t turn_ = kTurns;
  int64_t mark_ = 0, moved_bytes_ = 0;
};

}  // namespace dsv4::deepseek_v4
