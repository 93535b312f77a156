// Recordings of the steps that repeat, as many as their share of the device's memory holds.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "device/device.h"
#include "dsv4/status.h"

namespace dsv4 {

// What a recording does: the model with its logits, the draw of tokens from them with the next step's input, or both.
// kDraft: passes of a draft module with their draws. kRound: these, the step that verifies them, and what of it counts.
enum class StepWork : uint8_t { kModel, kDraw, kModelAndDraw, kDraft, kRound };

// Steps that repeat: the same kernels on the same addresses. Of kDraft `rows` are the places of a draft.
struct RepeatedStep {
  StepWork work;
  int64_t sequences, rows;
  bool keeps_drafts = true;  // Step's

  auto operator<=>(const RepeatedStep&) const = default;
};

// A recorded step starts at once; one that is not recorded is queued kernel by kernel, which the device hides behind
// the step before as soon as a step takes longer than its launches: from a few rows on. So small steps are
// recorded when they first run, others once they have proved to come back, the least used one goes when the share is
// full, and a step whose recording the device has no memory for runs without. Bits are the same either way: the same
// kernels on the same arrays. Steps have few sizes (idle_rows.h).
class Recordings {
 public:
  static constexpr int64_t kSmall = 8;        // rows up to which a step is recorded at once
  static constexpr int64_t kRunsBefore = 16;  // of a larger one

  // `max_bytes` of `device`'s memory; 0: nothing is recorded. What a recording takes is known only when it is there, so
  // that of one more may be used.
  Recordings(Device& device, int64_t max_bytes) : device_(device), max_bytes_(max_bytes) {}

  // Queues `work`, which is that of every other call with the same `step` since Clear.
  void Run(const RepeatedStep& step, const std::function<void()>& work);

  // Whether the next Run of that would record first; Prepare does that part of it. Recording may wait for a GPU, and
  // for those that write its memory: ranks all do it before one of them launches what waits for others.
  bool RecordsNext(const RepeatedStep& step) const;
  void Prepare(const RepeatedStep& step, const std::function<void()>& work);

  // Forgets all: addresses change. Nothing may be queued.
  void Clear();
  // The same where others need the memory: none is made again at once.
  void GiveUp();

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // by which the device's free memory has shrunk

 private:
  struct Entry {
    std::unique_ptr<Recording> recording;
    int64_t runs = 0;  // without one
    int64_t last_run = 0;
    bool waits = false;  // there was no memory: small steps wait as others do
  };
  bool RecordsNothing() const { return device_.kind() == DeviceKind::kCpu || max_bytes_ == 0; }
  static bool IsSmall(const RepeatedStep& step) { return std::max(step.sequences, step.rows) <= kSmall; }
  static bool RecordsNext(const Entry& entry, const RepeatedStep& step);
  void Record(Entry& entry, const std::function<void()>& work);
  bool EvictOldest();

  Device& device_;
  const int64_t max_bytes_;
  std::map<RepeatedStep, Entry> entries_;
  int64_t count_ = 0, bytes_ = 0, clock_ = 0;
};

// `reserve` takes memory for KV of all ranks: a Status. Where there is none, the ranks' `recordings` go first, as they
// only make steps faster. Nothing may be queued.
template <typename Reserve>
Status ReserveKv(std::span<Recordings* const> recordings, Reserve reserve) {
  Status status = reserve();
  const auto none = [](const Recordings* r) { return r->count() == 0; };
  if (status.code() != StatusCode::kResourceExhausted || std::all_of(recordings.begin(), recordings.end(), none))
    return status;
  for (Recordings* r : recordings) r->GiveUp();
  return reserve();
}

}  // namespace dsv4
