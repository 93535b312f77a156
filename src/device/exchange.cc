#include "device/exchange.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/str.h"

namespace dsv4 {

ExchangeRoom RoomForExchange(int64_t largest, int count, ExchangeTransport transport) {
  constexpr int64_t kMostBytes = int64_t{128} << 20, kMostBulkBytes = int64_t{256} << 20;
  constexpr int64_t kMostWords = int64_t{1} << 20;  // 128 rows of 8,192 columns
  const bool words = transport == ExchangeTransport::kWords;
  const int64_t most = std::min(kMostBytes / (2 * 8 * count), words ? kMostWords : kMostBytes);
  ExchangeRoom room{.elements = (std::clamp<int64_t>(largest, 4, most) + 3) / 4 * 4};
  if (words) {
    const int64_t share = (largest + count - 1) / count + kBulkChunk;  // shares differ in size
    room.bulk = std::min(BulkChunks(share) * kBulkChunk, kMostBulkBytes / (2 * count * 4));
    room.early = room.bulk;
  }
  return room;
}

// Words and arrays: two buffers, each with one row or array per sender (kEvents: plain values instead of words). Data
// sent early: two buffers, each with one array and one count per sender. The probe: one flag per sender.
int64_t ExchangeBytes(const ExchangeRoom& room, int count, ExchangeTransport transport) {
  if (transport == ExchangeTransport::kHost) return 0;
  const int64_t words = room.elements * (transport == ExchangeTransport::kWords ? 8 : 4);
  return 2 * count * (words + BulkRowBytes(room.bulk) + room.early * 4 + 8) + kMaxRanks * 8;
}

Exchange::Exchange(int count, ExchangeOptions options) : count_(count), options_(std::move(options)) {
  DSV4_CHECK(IsRankCount(count), count, " ranks");
  arrived_.fill(options_.first);
  for (int r = 0; r < count; ++r) views_.push_back({.rank = r, .count = count, .exchange = this});
}

std::string Exchange::SiteName(int64_t site) const {
  return options_.site_name ? options_.site_name(site) : StrCat("collective ", site);
}

Status Exchange::StatusOf(const ExchangeFailure& f) const {
  return Internal(StrCat(options_.rank_name, " ", f.peer, " sent nothing to ", options_.rank_name, " ", f.rank, " for ",
                         options_.timeout_s, " s (", SiteName(f.site), ")"));
}

void Exchange::Fail(Status status) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(status);
  all_here_.notify_all();
}

void Exchange::FailRank(int rank, const Status& why, bool in_pass) {
  const auto r = static_cast<size_t>(rank);
  int64_t last = -1;
  {
    const std::lock_guard lock(mutex_);
    inside_[r] = false;
    if (in_pass && arrived_[r] > 0) last = sites_[arrived_[r] % 2][r];
  }
  try {
    const std::string place = last < 0 ? "" : StrCat(" (after ", SiteName(last), ")");
    Fail({why.code(), StrCat(options_.rank_name, " ", rank, place, ": ", why.message())});
  } catch (const std::bad_alloc&) {
    Fail({why.code(), "no memory"});  // short enough to need no memory
  }
}

Status Exchange::status() {
  const std::lock_guard lock(mutex_);
  return failure_ ? *failure_ : Status{};
}

bool Exchange::Meet(int rank, int64_t site, void* data) {
  std::unique_lock lock(mutex_);
  shown_[static_cast<size_t>(rank)] = data;
  return inside_[static_cast<size_t>(rank)] = Arrive(lock, rank, site);
}

bool Exchange::Leave(int rank, int64_t site) {
  std::unique_lock lock(mutex_);
  inside_[static_cast<size_t>(rank)] = false;
  return Arrive(lock, rank, site);
}

// A rank is never more than one rendezvous ahead of another, so two rows of sites are enough.
bool Exchange::Arrive(std::unique_lock<std::mutex>& lock, int rank, int64_t site) {
  const uint64_t mine = ++arrived_[static_cast<size_t>(rank)];
  auto& sites = sites_[mine % 2];
  sites[static_cast<size_t>(rank)] = site;
  const auto missing = [&] {
    for (int p = 0; p < count_; ++p) {
      if (arrived_[static_cast<size_t>(p)] < mine) return p;
    }
    return -1;
  };
  const auto over = [&] { return failure_.has_value() || missing() < 0; };
  if (missing() < 0) all_here_.notify_all();
  if (options_.timeout_s <= 0) {
    all_here_.wait(lock, over);
  } else if (!all_here_.wait_for(lock, std::chrono::duration<double>(options_.timeout_s), over)) {
    failure_ = StatusOf({.rank = rank, .peer = missing(), .site = site, .tag = mine});
    all_here_.notify_all();
  }
  if (failure_) {
    // Other ranks between Meet and Leave may still read what this rank shows. They do not wait any more, so this wait
    // ends.
    all_here_.notify_all();
    all_here_.wait(lock, [&] { return std::none_of(inside_.begin(), inside_.end(), [](bool in) { return in; }); });
    return false;
  }
  for (int p = 0; p < count_; ++p) {
    if (sites[static_cast<size_t>(p)] == site) continue;
    failure_ = Internal(StrCat(options_.rank_name, " ", rank, " is at ", SiteName(site), ", ", options_.rank_name, " ",
                               p, " at ", SiteName(sites[static_cast<size_t>(p)]),
                               ": the ranks run different steps; please report this"));
    all_here_.notify_all();
    return false;
  }
  return true;
}

}  // namespace dsv4
