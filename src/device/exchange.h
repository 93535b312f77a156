// Exchange: the collectives of the ranks of one model. A rank is one thread, with a GPU or a share of the CPU. Ops use
// a RankView in ExecContext::ranks; only this folder knows how the bytes travel:
//
//   kHost    threads of one process on the CPU: a rank shows its array, waits for the others, reads theirs
//   kEvents  GPUs, ordered by the host: every stream waits for an event of every other stream. No kernel polls, so
//            several ranks may share one GPU, and profilers and sanitizers work
//   kWords   GPUs with peer access: values travel as (float32, tag) words that the receiver polls; large payloads
//            travel as arrays with a flag per chunk. No barrier, no host
//
// A rank that waits longer than the limit records what it waited for and continues. Then no rank waits any more, so the
// step ends instead of hanging, and status() names the rank that did not send. A failure is permanent.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/exec_context.h"
#include "dsv4/status.h"

namespace dsv4 {

inline constexpr int kMaxRanks = 8;

enum class ExchangeTransport : uint8_t { kHost, kEvents, kWords };

struct ExchangeOptions {
  double timeout_s = 10;  // limit for the wait of one rank for another; 0: none
  // GPUs: the float32 values of a rank that its peers have memory for: `elements` as words (kEvents: as copies), `bulk`
  // as arrays. Larger payloads are sent in pieces.
  int64_t elements = 0, bulk = 0;
  // The same for data that copy engines send early (kWords). Larger payloads are not sent early.
  int64_t early = 0;
  uint32_t first = 0;              // collectives that count as done: tests begin near the largest tags
  std::string rank_name = "rank";  // "GPU" makes "GPU 1 sent nothing to GPU 0"
  std::function<std::string(int64_t site)> site_name;  // "layer 17, experts"; not set: "collective 34"
};

// A wait that ran out of time.
struct ExchangeFailure {
  int rank = 0, peer = 0;
  int64_t site = 0;
  uint64_t tag = 0;  // collectives before it, over all passes
};

// In GPU memory, read by the rank's kernels, so that no recording contains values that change.
struct ExchangeState {
  uint32_t base = 0;        // collectives of the passes before this one
  uint32_t failed = 0;      // not 0: no rank waits any more
  uint64_t timeout_ns = 0;  // 0: no limit
};

// The exchange memory as kernels use it; passed to them by value. words[r] is in rank r's memory, and all ranks write
// it: [2][count][elements] of 8 bytes: the buffer (tag & 1), then one row per sender. kEvents: float32
// [2][count][elements]. bulk[r]: [2][count] arrays of `bulk_floats`; after each array one flag (the tag, 8 bytes) per
// kBulkChunk of it. early[r]: [2][count] arrays of `early_floats`, then [2][count] counts of 8 bytes.
struct ExchangeMemory {
  std::array<uint64_t*, kMaxRanks> words = {};
  std::array<uint8_t*, kMaxRanks> bulk = {}, early = {};
  ExchangeState* state = nullptr;  // of this rank
  uint64_t* report = nullptr;      // on the host, mapped: [4] rank + 1, peer, site, tag of the first failure
  int64_t elements = 0;            // a multiple of 4
  int64_t bulk_floats = 0;         // a multiple of kBulkChunk; 0: not kWords
  int64_t early_floats = 0;        // a multiple of kBulkChunk; 0: not kWords
};

inline constexpr int64_t kBulkChunk = 4096;
constexpr int64_t BulkChunks(int64_t floats) { return (floats + kBulkChunk - 1) / kBulkChunk; }
// Bytes of one sender's array with its flags, rounded up to 128.
constexpr int64_t BulkRowBytes(int64_t floats) { return floats * 4 + (BulkChunks(floats) * 8 + 127) / 128 * 128; }

class Exchange;

// One rank's view.
struct RankView {
  int rank = 0;
  int count = 1;  // 1, 2, 4 or 8
  ExchangeTransport transport = ExchangeTransport::kHost;
  Exchange* exchange = nullptr;  // null: the ranks are only described
  ExchangeMemory memory = {};    // GPUs only
};

class Exchange {
 public:
  // An exchange between threads (kHost). `count`: 1, 2, 4 or 8.
  Exchange(int count, ExchangeOptions options);
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int count() const { return count_; }
  ExchangeTransport transport() const { return transport_; }
  const ExchangeOptions& options() const { return options_; }
  void set_site_name(std::function<std::string(int64_t)> name) { options_.site_name = std::move(name); }
  const RankView& view(int rank) const { return views_[static_cast<size_t>(rank)]; }

  // A rendezvous: shows `data` to the other ranks and waits until all ranks are at the same site. Between Meet and
  // Leave a rank may read what the others show, and write where the ranks have agreed. False: the exchange has failed;
  // do not access memory of another rank.
  [[nodiscard]] bool Meet(int rank, int64_t site, void* data);
  void* shown(int rank) const { return shown_[static_cast<size_t>(rank)]; }
  // Waits until all ranks are done with the data that was shown.
  [[nodiscard]] bool Leave(int rank, int64_t site);

  // Records the first failure; later ones are ignored. Wakes all waiting ranks.
  virtual void Fail(Status status);
  // Reports that a rank cannot continue (out of memory, or its step threw). The others stop waiting for it. `in_pass`:
  // the status names the last collective of the rank, if the host orders collectives.
  void FailRank(int rank, const Status& why, bool in_pass = false);

  // OK until the exchange fails.
  virtual Status status();
  // kWords: clears words and counters. No rank may have work queued.
  virtual Status Rewind() { return {}; }
  // Rewinds if the tags may run out in the next 2^31 collectives. No rank may have work queued.
  virtual Status RewindInTime() { return {}; }

 protected:
  Status StatusOf(const ExchangeFailure& failure) const;
  std::string SiteName(int64_t site) const;

  ExchangeTransport transport_ = ExchangeTransport::kHost;
  std::vector<RankView> views_;

 private:
  bool Arrive(std::unique_lock<std::mutex>& lock, int rank, int64_t site);

  const int count_;
  ExchangeOptions options_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::array<uint64_t, kMaxRanks> arrived_ = {};              // number of rendezvous that each rank has reached
  std::array<std::array<int64_t, kMaxRanks>, 2> sites_ = {};  // of the last two rendezvous
  std::array<void*, kMaxRanks> shown_ = {};
  std::array<bool, kMaxRanks> inside_ = {};  // between Meet and Leave
  std::optional<Status> failure_;
};

// One rank's GPU, as the exchange needs it.
struct ExchangeGpu {
  int index = 0;           // the driver's number
  void* stream = nullptr;  // cudaStream_t of the rank
};

// The sizes that all-reduces of up to `largest` values need: all values at once, or pieces if that exceeds about 100
// MB. With kWords, payloads larger than a decode step's travel as arrays: a rank's share at once, or pieces if
// that exceeds 256 MB. Data is sent early only if it fits in 256 MB.
struct ExchangeRoom {
  int64_t elements = 0, bulk = 0, early = 0;  // as in ExchangeOptions
};
ExchangeRoom RoomForExchange(int64_t largest, int count, ExchangeTransport transport);
// Bytes of each GPU's memory, per rank.
int64_t ExchangeBytes(const ExchangeRoom& room, int count, ExchangeTransport transport);

// Allocates exchange memory on every GPU and maps only that memory into all of them. With kWords it first probes the
// links of each pair with data in both directions; an error names the pair. Streams are idle when it returns. kWords
// requires one GPU per rank.
Result<std::unique_ptr<Exchange>> OpenGpuExchange(std::span<const ExchangeGpu> gpus, ExchangeTransport transport,
                                                  const ExchangeOptions& options);

// A site is the number of a collective in its pass; the bits above the lower 32 hold the place for messages.
constexpr int64_t SiteAt(int64_t place, int64_t site) { return place << 32 | (site & 0xFFFFFFFF); }
constexpr int64_t PlaceOf(int64_t site) { return site >> 32; }

// Call after the last collective of a pass. `site`: the number after it, with all pieces counted. The next pass begins
// with number 0. Only kWords needs it: recorded work needs rising tags.
void AdvanceExchanges(const ExecContext& ctx, int64_t site);

// Whether `count` ranks can add in a tree.
constexpr bool IsRankCount(int64_t count) { return count == 1 || count == 2 || count == 4 || count == 8; }

// Rank r's share of n units: [begin, end). Multiples of `grain`, except the end of the last one.
struct RankShare {
  int64_t begin = 0, end = 0;
};
constexpr RankShare ShareOf(int64_t n, int rank, int count, int64_t grain) {
  const int64_t units = (n + grain - 1) / grain, first = units * rank / count, last = units * (rank + 1) / count;
  return {first * grain < n ? first * grain : n, last * grain < n ? last * grain : n};
}

constexpr int64_t LongestShare(int64_t n, int count, int64_t grain) {
  int64_t longest = 0;
  for (int r = 0; r < count; ++r) {
    const RankShare share = ShareOf(n, r, count, grain);
    longest = share.end - share.begin > longest ? share.end - share.begin : longest;
  }
  return longest;
}
// The number of collectives for arrays of up to `chunks` chunks: one per piece if they are larger than the memory for
// them. At least 1, also for no chunks.
constexpr int64_t BulkExchanges(const ExchangeMemory& m, int64_t chunks) {
  const int64_t room = m.bulk_floats / kBulkChunk, pieces = (chunks + room - 1) / room;
  return pieces < 1 ? 1 : pieces;
}

}  // namespace dsv4
