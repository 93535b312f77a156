#include "model/deepseek_v4/experts/fetch_schedule.h"

#include <utility>

namespace dsv4::deepseek_v4 {

FetchSchedule::FetchSchedule(std::unique_ptr<CopyQueue> copies, std::vector<FetchPart> parts)
    : copies_(std::move(copies)), parts_(std::move(parts)) {
  held_.fill(-1);
}

void FetchSchedule::Fetch(int64_t part) {
  if (part >= static_cast<int64_t>(parts_.size()) || held_[PlaceOf(part)] == part) return;
  copies_->AfterWork();  // what is in the place has been read then
  for (const FetchCopy& c : parts_[static_cast<size_t>(part)]) {
    copies_->Copy(c.to, c.from, c.bytes);
    fetched_bytes_ += c.bytes;
  }
  held_[PlaceOf(part)] = part;
  marks_[PlaceOf(part)] = copies_->Mark();
}

void FetchSchedule::Await(int64_t part) {
  for (int64_t next = part; next < part + kPlaces; ++next) Fetch(next);
  copies_->WorkAfter(marks_[PlaceOf(part)]);
}

void FetchSchedule::Done(int64_t part) { Fetch(part + kPlaces); }

}  // namespace dsv4::deepseek_v4
