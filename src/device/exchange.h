// Exchange: how the ranks of one model - one thread each, with a GPU or a share of the CPU - give each other parts of a
// sum. Ops see a RankView through ExecContext::ranks; nobody else knows which way the bytes go:
//
//   kHost    threads of one process on the CPU: a rank shows its array, waits for the others, reads theirs
//   kEvents  GPUs, ordered by the hosts: every stream waits for an event of every other. Nothing polls, so several
//   ranks
//            may share one GPU, and profilers and sanitizers work
//   kWords   GPUs with peer access: values travel as (float32, tag) words that the receiver polls; those of many rows
//   as
//            arrays with a flag for each of their chunks. No barrier, no host
//
// A rank that waits too long writes down what it waited for and goes on; from then on nobody waits, so that a step
// drains instead of hanging, and status() says which rank did not come. An exchange that has failed stays failed.
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
  double timeout_s = 10;  // that a rank waits for another; 0: for ever
  // GPUs: float32 values of a rank that its peers have room for as words (kEvents: as copies), and as arrays; larger
  // payloads go in pieces.
  int64_t elements = 0, bulk = 0;
  // The same of what is sent early, by copy engines (kWords); larger payloads are not.
  int64_t early = 0;
  uint32_t first = 0;              // exchanges that count as done: tests begin near the largest tags
  std::string rank_name = "rank";  // "GPU" makes "GPU 1 sent nothing to GPU 0"
  std::function<std::string(int64_t site)> site_name;  // "layer 17, experts"; none: "exchange 34"
};

// What a rank waited for in vain.
struct ExchangeFailure {
  int rank = 0, peer = 0;
  int64_t site = 0;
  uint64_t tag = 0;  // how many exchanges before, over all passes
};

// In a GPU's memory; its rank's kernels read it, so that no recording holds what changes.
struct ExchangeState {
  uint32_t base = 0;        // exchanges of the passes before this one
  uint32_t failed = 0;      // not 0: nobody waits any more
  uint64_t timeout_ns = 0;  // 0: for ever
};

// Where kernels find the exchange memory; passed to them by value. words[r] lies in rank r's memory and is written by
// all ranks: [2][count][elements] of 8 bytes, buffer (tag & 1), one row a sender (kEvents: float32
// [2][count][elements]). bulk[r], too: [2][count] arrays of `bulk_floats`, each with a flag (the tag, 8 bytes) for
// every kBulkChunk of them behind it. early[r]: [2][count] arrays of `early_floats`, then as many counts of 8
// bytes.
struct ExchangeMemory {
  std::array<uint64_t*, kMaxRanks> words = {};
  std::array<uint8_t*, kMaxRanks> bulk = {}, early = {};
  ExchangeState* state = nullptr;  // this rank's
  uint64_t* report = nullptr;      // on the host, mapped: [4] rank + 1, peer, site, tag of the first failure
  int64_t elements = 0;            // a multiple of 4
  int64_t bulk_floats = 0;         // a multiple of kBulkChunk; 0: not kWords
  int64_t early_floats = 0;        // likewise
};

inline constexpr int64_t kBulkChunk = 4096;
constexpr int64_t BulkChunks(int64_t floats) { return (floats + kBulkChunk - 1) / kBulkChunk; }
// Of one sender's array with its flags: whole lines.
constexpr int64_t BulkRowBytes(int64_t floats) { return floats * 4 + (BulkChunks(floats) * 8 + 127) / 128 * 128; }

class Exchange;

// One rank's side.
struct RankView {
  int rank = 0;
  int count = 1;  // 1, 2, 4 or 8
  ExchangeTransport transport = ExchangeTransport::kHost;
  Exchange* exchange = nullptr;  // null: the ranks are described only
  ExchangeMemory memory = {};    // GPUs
};

class Exchange {
 public:
  // Of threads (kHost). `count`: 1, 2, 4 or 8.
  Exchange(int count, ExchangeOptions options);
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int count() const { return count_; }
  ExchangeTransport transport() const { return transport_; }
  const ExchangeOptions& options() const { return options_; }
  void set_site_name(std::function<std::string(int64_t)> name) { options_.site_name = std::move(name); }
  const RankView& view(int rank) const { return views_[static_cast<size_t>(rank)]; }

  // A rendezvous: shows `data` to the other ranks and waits until all have come to the same site. Between Meet and
  // Leave a rank may read what the others show, and write what they agreed on. False: the exchange has failed, and
  // nothing of another rank may be touched.
  [[nodiscard]] bool Meet(int rank, int64_t site, void* data);
  void* shown(int rank) const { return shown_[static_cast<size_t>(rank)]; }
  // Waits until all ranks have done with what was shown.
  [[nodiscard]] bool Leave(int rank, int64_t site);

  // The first failure stays. Wakes whoever waits.
  virtual void Fail(Status status);
  // A rank cannot go on (its memory ran out, its step threw): says so to the others, who stop waiting for it.
  // `in_pass`: the status names the exchange behind which that was, where the host orders exchanges.
  void FailRank(int rank, const Status& why, bool in_pass = false);

  // OK until the exchange fails.
  virtual Status status();
  // kWords: clears words and counters. No rank may have work queued.
  virtual Status Rewind() { return {}; }
  // Rewinds where tags may run out in the next 2^31 exchanges. No rank may have work queued.
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
  std::array<uint64_t, kMaxRanks> arrived_ = {};              // how many rendezvous each rank has come to
  std::array<std::array<int64_t, kMaxRanks>, 2> sites_ = {};  // of the last two
  std::array<void*, kMaxRanks> shown_ = {};
  std::array<bool, kMaxRanks> inside_ = {};  // between Meet and Leave
  std::optional<Status> failure_;
};

// A GPU of a rank, as the exchange needs it.
struct ExchangeGpu {
  int index = 0;           // the driver's number
  void* stream = nullptr;  // cudaStream_t of the rank
};

// Room for a rank's values that sums of up to `largest` of them need: all at once, or pieces of what some 100 MB hold.
// With kWords those of more than a decode step's rows travel as arrays: a rank's share of them at once, or pieces of
// what 256 MB hold; and early, if 256 MB hold them.
struct ExchangeRoom {
  int64_t elements = 0, bulk = 0, early = 0;  // as in ExchangeOptions
};
ExchangeRoom RoomForExchange(int64_t largest, int count, ExchangeTransport transport);
// Of each GPU's memory, a rank.
int64_t ExchangeBytes(const ExchangeRoom& room, int count, ExchangeTransport transport);

// Exchange memory on every GPU, mapped into all of them, nothing else. With kWords each pair's links are probed with
// data in both directions first: an error names the pair. Streams are idle when it returns. kWords asks for different
// GPUs.
Result<std::unique_ptr<Exchange>> OpenGpuExchange(std::span<const ExchangeGpu> gpus, ExchangeTransport transport,
                                                  const ExchangeOptions& options);

// A site is the number of an exchange in its pass, and above its lower 32 bits the place that a message names.
constexpr int64_t SiteAt(int64_t place, int64_t site) { return place << 32 | (site & 0xFFFFFFFF); }
constexpr int64_t PlaceOf(int64_t site) { return site >> 32; }

// Behind the last exchange of a pass, `site` being the number behind it (all pieces counted): the next pass begins with
// number 0 again. Only kWords has something to do: work that is recorded once needs tags that rise.
void AdvanceExchanges(const ExecContext& ctx, int64_t site);

// Whether `count` ranks can add in a tree.
constexpr bool IsRankCount(int64_t count) { return count == 1 || count == 2 || count == 4 || count == 8; }

// Rank r's part of n units: [begin, end), in multiples of `grain` but for the last.
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
// Exchanges that arrays of at most so many chunks take: pieces, where they are longer than the memory for them. Also
// for none.
constexpr int64_t BulkExchanges(const ExchangeMemory& m, int64_t chunks) {
  const int64_t room = m.bulk_floats / kBulkChunk, pieces = (chunks + room - 1) / room;
  return pieces < 1 ? 1 : pieces;
}

}  // namespace dsv4
