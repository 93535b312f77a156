// Recordings (CUDA graphs) of the steps that repeat, within a limit of device memory.
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

// The work in a recording: the model with its logits, the draw of tokens from them with the next step's input, or both.
// kDraft: passes of a draft module with their draws. kRound: kDraft, the step that verifies the drafts, and the count
// of the accepted ones.
enum class StepWork : uint8_t { kModel, kDraw, kModelAndDraw, kDraft, kRound };

// A step that repeats: the same kernels on the same addresses. For kDraft, `rows` is the number of draft positions.
struct RepeatedStep {
  StepWork work;
  int64_t sequences, rows;
  bool keeps_drafts = true;  // as in Step

  auto operator<=>(const RepeatedStep&) const = default;
};

// A recorded step starts at once. A step that is not recorded is queued kernel by kernel. That costs nothing if the
// previous step runs longer than the launches take, which needs a few rows. So small steps are recorded at their first
// run, larger ones after they have repeated. When the limit is reached, the least recently used recording is dropped. A
// step runs without a recording if the device has no memory for it. The bits are the same: the same kernels on the same
// arrays. Steps have few sizes (idle_rows.h).
class Recordings {
 public:
  static constexpr int64_t kSmall = 8;        // steps of up to this many rows are recorded at their first run
  static constexpr int64_t kRunsBefore = 16;  // runs of a larger step before it is recorded

  // `max_bytes` of `device`'s memory; 0: nothing is recorded. The size of a recording is known only when it is made, so
  // one more than fits may exist.
  Recordings(Device& device, int64_t max_bytes) : device_(device), max_bytes_(max_bytes) {}

  // Queues `work`. Requires: `work` is the same as in every other call with the same `step` since Clear.
  void Run(const RepeatedStep& step, const std::function<void()>& work);

  // RecordsNext: whether the next Run of `step` would record first. Prepare records only. Recording may wait for a GPU,
  // and so for the ranks that write its memory: all ranks prepare before one launches work that waits for others.
  bool RecordsNext(const RepeatedStep& step) const;
  void Prepare(const RepeatedStep& step, const std::function<void()>& work);

  // Drops all recordings, because addresses change. No work may be queued.
  void Clear();
  // The same if others need the memory: no step is recorded again at once.
  void GiveUp();

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // by which the device's free memory has decreased

 private:
  struct Entry {
    std::unique_ptr<Recording> recording;
    int64_t runs = 0;  // runs without a recording
    int64_t last_run = 0;
    bool waits = false;  // there was no memory: a small step waits like a larger one
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

// `reserve` allocates KV memory of all ranks and returns a Status. If there is not enough, drops the ranks'
// `recordings`, which only make steps faster, and tries again. No work may be queued.
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
