#include "engine/decode/decode_loop.h"

#include <algorithm>
#include <array>

#include "base/str.h"

namespace dsv4 {

Result<bool> ReserveInPlace(RankCaches& caches, int64_t tokens) {
  std::array<uint8_t* const*, kMaxRanks> before;
  const auto table = [&caches](int r) { return caches.of(r).View(0, 0, 0).pages; };
  for (int r = 0; r < caches.count(); ++r) before[static_cast<size_t>(r)] = table(r);
  DSV4_RETURN_IF_ERROR(caches.Reserve(tokens));
  for (int r = 0; r < caches.count(); ++r) {
    if (table(r) != before[static_cast<size_t>(r)]) return false;
  }
  return true;
}

DecodeLoop::DecodeLoop(RankDecodeSteps& steps, const ModelInfo& info, std::span<const DecodeItem> items,
                       const TokenFn& on_token, std::vector<LiveItem>& live)
    : steps_(steps), info_(info), items_(items), on_token_(on_token), live_(live) {}

Status DecodeLoop::Run(const std::function<bool()>& pause) {
  pause_ = pause;
  paused_ = false;
  while (!live_.empty() && !paused_) {
    DSV4_RETURN_IF_ERROR(RunTogether());
    std::erase_if(live_, [](const LiveItem& l) { return l.ended; });
  }
  return {};
}

Status DecodeLoop::SetUp() {
  const auto n = static_cast<int64_t>(live_.size());
  steps_.ranks().Reserve(StepRows(n), StepRows(n));
  step_.Clear();
  caches_.clear();
  std::vector<DecodeSteps::Draw> draws;
  for (int64_t i = 0; i < n; ++i) {
    LiveItem& l = live_[static_cast<size_t>(i)];
    DSV4_RETURN_IF_ERROR(CheckTokens(info_, LengthOf(*l.session), {&l.next, 1}));
    const int64_t start = LengthOf(*l.session);
    // The token behind the sequence and the one behind that.
    DSV4_RETURN_IF_ERROR(
        ReserveKv(steps_.ranks().recordings(), [&] { return l.session->caches().Reserve(start + 2); }));
    l.session->ReserveTokens(2);
    step_.Add({&l.next, 1}, l.session->cache().View(start, i, i + 1));
    step_.logit_rows.push_back(static_cast<int32_t>(i));
    caches_.push_back(&l.session->caches());
    draws.push_back({.sampler = l.sampler, .masked = static_cast<bool>(items_[l.item].allowed)});
  }
  return steps_.Begin(step_, caches_, draws);
}

Result<bool> DecodeLoop::RoomForNext() {
  for (LiveItem& l : live_) {
    const int64_t after = LengthOf(*l.session) + 2;  // tokens once the next step has run
    if (l.drawn + 1 >= items_[l.item].max_tokens || after > info_.max_context) return false;
    const Result<bool> in_place = ReserveInPlace(l.session->caches(), after);
    if (in_place.status().code() == StatusCode::kResourceExhausted) return false;  // set up anew, it may find some
    DSV4_RETURN_IF_ERROR(in_place.status());
    if (!*in_place) return false;
  }
  return true;
}

Status DecodeLoop::QueueDraw(int64_t k) {
  if (!steps_.masked()) return {};
  for (size_t i = 0; i < live_.size(); ++i) {
    const std::span<uint32_t> row = steps_.MaskOf(i);
    if (row.empty()) continue;
    const LiveItem& l = live_[i];
    const std::span<const uint32_t> allowed = l.ended ? std::span<const uint32_t>() : items_[l.item].allowed();
    if (allowed.empty()) {
      std::fill(row.begin(), row.end(), ~0u);
    } else {
      std::copy_n(allowed.begin(), row.size(), row.begin());
    }
  }
  return steps_.QueueDraw(k);
}

Status DecodeLoop::Take(LiveItem& l, int32_t drawn) {
  l.session->ReserveTokens(2);
  l.session->Commit({&l.next, 1});
  if (!step_.keeps_drafts) l.session->SkipDrafts();
  const SampledToken token{.id = drawn};
  DSV4_RETURN_IF_ERROR(CheckDrawn(token.id));
  l.sampler->Count(token.id);
  Emit(l, items_[l.item], token, on_token_);
  return {};
}

Result<bool> DecodeLoop::Collect(int64_t k) {
  DSV4_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, steps_.Wait(k));
  bool all_go_on = true;
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i].ended) continue;
    DSV4_RETURN_IF_ERROR(Take(live_[i], tokens[i]));
    all_go_on = all_go_on && !live_[i].ended;
  }
  return all_go_on;
}

// Step k to its end, with k + 1 queued behind it. False: the steps end here.
Result<bool> DecodeLoop::RunStep(int64_t k) {
  DSV4_ASSIGN_OR_RETURN(const bool more, RoomForNext());
  if (more) DSV4_RETURN_IF_ERROR(steps_.QueueModel(k + 1));
  DSV4_ASSIGN_OR_RETURN(const bool all_go_on, Collect(k));
  if (more) DSV4_RETURN_IF_ERROR(QueueDraw(k + 1));
  paused_ = paused_ || (pause_ && pause_());
  if (all_go_on && more && !paused_) return true;
  if (more) DSV4_RETURN_IF_ERROR(Collect(k + 1).status());
  return false;
}

Status DecodeLoop::RunTogether() {
  DSV4_RETURN_IF_ERROR(SetUp());
  const auto run = [this]() -> Status {
    DSV4_RETURN_IF_ERROR(steps_.QueueModel(0));
    DSV4_RETURN_IF_ERROR(QueueDraw(0));
    for (int64_t k = 0;; ++k) {
      DSV4_ASSIGN_OR_RETURN(const bool more, RunStep(k));
      if (!more) return {};
    }
  };
  const Status status = run();
  if (!status.ok()) steps_.ranks().Synchronize();
  return status;
}

}  // namespace dsv4
