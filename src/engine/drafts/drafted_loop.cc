#include "engine/drafts/drafted_loop.h"

#include <algorithm>
#include <array>

#include "base/stopwatch.h"
#include "base/str.h"
#include "engine/decode/decode_loop.h"
#include "engine/ranks/idle_rows.h"

namespace dsv4 {

RankDraftedSteps::RankDraftedSteps(RankDecodeSteps& steps, int64_t vocab_size) : ranks_(steps.ranks()) {
  for (int r = 0; r < ranks_.count(); ++r)
    steps_.push_back(std::make_unique<DraftedSteps>(ranks_.runner(r), steps.tables(r), vocab_size));
}

Status RankDraftedSteps::Begin(const Step& step, std::span<RankCaches* const> caches,
                               std::span<const DraftedSequence> sequences) {
  DSV4_RETURN_IF_ERROR(ranks_.GiveViews(step, caches));
  return ranks_.Run([&](int r) { return steps_[static_cast<size_t>(r)]->Begin(ranks_.StepOf(r, step), sequences); });
}

bool RankDraftedSteps::RecordsNext() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const auto& steps) { return steps->RecordsNext(); });
}

Status RankDraftedSteps::Queue(int64_t k) {
  return ranks_.RunRecorded(
      [this](int r) { return steps_[static_cast<size_t>(r)]->RecordsNext(); },
      [this](int r) { steps_[static_cast<size_t>(r)]->Prepare(); },
      [this, k](int r) { return steps_[static_cast<size_t>(r)]->Queue(k), ranks_.runner(r).device().status(); });
}

Result<std::span<const int32_t>> RankDraftedSteps::Wait(int64_t k) {
  return ranks_.WaitForSame([this, k](int r) { return steps_[static_cast<size_t>(r)]->Wait(k); });
}

bool DraftedLoop::HasRoom(const LiveItem& l, int64_t more) const {
  return l.drawn + more <= items_[l.item].max_tokens && LengthOf(*l.session) + more <= info_.max_context;
}

int64_t DraftedLoop::WidestPass(int64_t rows) const {
  const int64_t of_module = steps_.ranks().leader().model().draft().rows;
  return static_cast<int64_t>(live_.size()) * std::max(rows, of_module);
}

bool DraftedLoop::Takes(int64_t drafts) const {
  const int64_t rows = drafts + 1;
  if (drafts < 1 || rows > DraftedSteps::kMostRows || WidestPass(rows) > DraftedSteps::kMaxRows) return false;
  return std::all_of(live_.begin(), live_.end(), [&](const LiveItem& l) {
    const DecodeItem& item = items_[l.item];
    return item.speculate && !item.allowed && !l.ended && l.session->can_draft() && HasRoom(l, 2 * rows);
  });
}

Status DraftedLoop::SetUp(Drafter& drafter) {
  const int64_t widest = StepRows(WidestPass(rows_));
  steps_.ranks().Reserve(widest, widest);
  step_.Clear();
  caches_.clear();
  std::vector<DraftedSequence> sequences;
  for (LiveItem& l : live_) {
    const int64_t start = LengthOf(*l.session), begin = step_.num_tokens();
    DSV4_RETURN_IF_ERROR(CheckTokens(info_, start, {&l.next, 1}));
    DSV4_RETURN_IF_ERROR(
        ReserveKv(steps_.ranks().recordings(), [&] { return l.session->caches().Reserve(start + 2 * rows_); }));
    l.session->ReserveTokens(static_cast<size_t>(rows_));
    std::array<TokenId, DraftedSteps::kMostRows> tokens = {};  // room for drafts
    tokens[0] = l.next;
    step_.Add(std::span(tokens).first(static_cast<size_t>(rows_)),
              l.session->cache().View(start, begin, begin + rows_));
    for (int64_t i = 0; i < rows_; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
    caches_.push_back(&l.session->caches());
    const Drafter::Known known = drafter.KnownOf(*l.session);
    const auto skip = static_cast<size_t>(std::clamp<int64_t>(start - known.from, 0, std::ssize(known.tokens)));
    sequences.push_back({.sampler = l.sampler,
                         .known = known.tokens.subspan(skip),
                         .known_from = known.from + static_cast<int64_t>(skip)});
  }
  return steps_.Begin(step_, caches_, sequences);
}

Result<bool> DraftedLoop::RoomForNext() {
  for (LiveItem& l : live_) {
    if (!HasRoom(l, 2 * rows_)) return false;
    const Result<bool> in_place = ReserveInPlace(l.session->caches(), LengthOf(*l.session) + 2 * rows_);
    if (in_place.status().code() == StatusCode::kResourceExhausted) return false;
    DSV4_RETURN_IF_ERROR(in_place.status());
    if (!*in_place) return false;
  }
  return true;
}

Status DraftedLoop::Take(size_t i, std::span<const int32_t> results, bool queued, const VerifiedFn& on_verified) {
  LiveItem& l = live_[i];
  const DecodeItem& item = items_[l.item];
  const auto rows = static_cast<size_t>(rows_);
  const auto right = static_cast<size_t>(results[0]);
  const std::span<const int32_t> drawn = results.subspan(1, right + 1);
  const int64_t start = LengthOf(*l.session), next_start = start + static_cast<int64_t>(right) + 1;
  l.session->NoteWritten((queued ? next_start : start) + rows_);
  l.session->ReserveTokens(rows);
  Verification verified{.position = start - 1, .proposed = results.subspan(1 + rows)};
  int64_t gained = 0;
  for (size_t j = 0; j < drawn.size(); ++j) {
    l.session->Commit({&l.next, 1});
    DSV4_RETURN_IF_ERROR(CheckDrawn(drawn[j]));
    l.sampler->Count(drawn[j]);
    Emit(l, item, {.id = drawn[j], .drafted = j > 0}, on_token_);
    gained = static_cast<int64_t>(j);
    verified.accepted = static_cast<int64_t>(std::min(j + 1, right));
    if (l.ended) break;
  }
  on_verified(i, verified, gained);
  return {};
}

Result<bool> DraftedLoop::Collect(int64_t k, bool queued, const VerifiedFn& on_verified) {
  DSV4_ASSIGN_OR_RETURN(const std::span<const int32_t> results, steps_.Wait(k));
  const auto each = static_cast<size_t>(2 * rows_);
  bool all_go_on = true;
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i].ended) continue;
    DSV4_RETURN_IF_ERROR(Take(i, results.subspan(i * each, each), queued, on_verified));
    all_go_on = all_go_on && !live_[i].ended;
  }
  return all_go_on;
}

Result<bool> DraftedLoop::RunRound(int64_t k, const VerifiedFn& on_verified, const RoundFn& on_round) {
  const bool records = steps_.RecordsNext();
  const Stopwatch taking;
  DSV4_ASSIGN_OR_RETURN(const bool more, RoomForNext());
  if (more) DSV4_RETURN_IF_ERROR(steps_.Queue(k + 1));
  DSV4_ASSIGN_OR_RETURN(const bool all_go_on, Collect(k, more, on_verified));
  const bool ends = on_round(taking.Seconds(), k == 0 || records);
  if (all_go_on && more && !ends) return true;
  if (!more) return false;
  const bool read = std::any_of(live_.begin(), live_.end(), [](const LiveItem& l) { return !l.ended; });
  const Stopwatch last;
  DSV4_RETURN_IF_ERROR(Collect(k + 1, /*queued=*/false, on_verified).status());
  if (read) on_round(last.Seconds(), /*was_first=*/false);  // else all that it made lies behind an end
  return false;
}

Status DraftedLoop::Run(int64_t drafts, Drafter& drafter, const VerifiedFn& on_verified, const RoundFn& on_round) {
  rows_ = drafts + 1;
  DSV4_RETURN_IF_ERROR(SetUp(drafter));
  const auto run = [&]() -> Status {
    DSV4_RETURN_IF_ERROR(steps_.Queue(0));
    for (int64_t k = 0;; ++k) {
      DSV4_ASSIGN_OR_RETURN(const bool more, RunRound(k, on_verified, on_round));
      if (!more) return {};
    }
  };
  const Status status = run();
  if (status.ok()) return status;
  steps_.ranks().Synchronize();
  for (const LiveItem& l : live_) l.session->NoteWritten(LengthOf(*l.session) + 2 * rows_);  // of rounds queued
  return status;
}

}  // namespace dsv4
