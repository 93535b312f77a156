#include "engine/ranks/recordings.h"

#include <algorithm>

namespace dsv4 {

void Recordings::Run(const RepeatedStep& step, const std::function<void()>& work) {
  if (RecordsNothing()) return work();
  Entry& entry = entries_[step];
  entry.last_run = ++clock_;
  if (RecordsNext(entry, step)) Record(entry, work);
  if (entry.recording != nullptr) return entry.recording->Launch();
  ++entry.runs;
  work();
}

bool Recordings::RecordsNext(const Entry& entry, const RepeatedStep& step) {
  const bool at_once = IsSmall(step) && !entry.waits;
  return entry.recording == nullptr && (at_once || entry.runs >= kRunsBefore);
}

bool Recordings::RecordsNext(const RepeatedStep& step) const {
  if (RecordsNothing()) return false;
  const auto at = entries_.find(step);
  return at == entries_.end() ? IsSmall(step) : RecordsNext(at->second, step);
}

void Recordings::Prepare(const RepeatedStep& step, const std::function<void()>& work) {
  if (!RecordsNext(step)) return;
  Entry& entry = entries_[step];
  entry.last_run = clock_ + 1;  // not the oldest
  Record(entry, work);
}

void Recordings::Record(Entry& entry, const std::function<void()>& work) {
  // The driver reuses the memory of a destroyed recording, so one out for one in keeps within the limit.
  if (bytes_ >= max_bytes_) EvictOldest();
  const int64_t before = device_.free_bytes();
  entry.recording = device_.Record(work);
  while (entry.recording == nullptr && EvictOldest()) entry.recording = device_.Record(work);
  entry.runs = 0;
  entry.waits = entry.recording == nullptr;
  if (entry.waits) return;
  bytes_ += std::max<int64_t>(before - device_.free_bytes(), 0);
  ++count_;
}

bool Recordings::EvictOldest() {
  Entry* oldest = nullptr;
  for (auto& [key, entry] : entries_) {
    if (entry.recording != nullptr && (oldest == nullptr || entry.last_run < oldest->last_run)) oldest = &entry;
  }
  if (oldest == nullptr) return false;
  (void)device_.Synchronize();  // its last launch may still run
  const int64_t before = device_.free_bytes();
  oldest->recording.reset();
  bytes_ = std::max<int64_t>(bytes_ - std::max<int64_t>(device_.free_bytes() - before, 0), 0);
  --count_;
  return true;
}

void Recordings::GiveUp() {
  while (EvictOldest()) {
  }
  for (auto& [key, entry] : entries_) {
    entry.runs = 0;
    entry.waits = true;
  }
}

void Recordings::Clear() {
  while (EvictOldest()) {
  }
  entries_.clear();
}

}  // namespace dsv4
