#include "engine/drafts/device_round.h"

#include <algorithm>

#include "base/check.h"
#include "engine/ranks/idle_rows.h"

namespace dsv4 {

namespace {

constexpr size_t kMostAlso = 64;  // of a sequence; then its counts are placed anew
constexpr int64_t kAlsoBytes = DeviceRound::kMaxRows * (static_cast<int64_t>(kMostAlso) + kMaxDraftTokens) * 4;

}  // namespace

int64_t DeviceRound::Bytes(int64_t vocab_size) {
  return kMaxRows * (kSampleRowBytes + 4 + SampleMaskWords(vocab_size) * 4) + kAlsoBytes;
}

DeviceRound::~DeviceRound() { (void)device().Synchronize(); }

Status DeviceRound::Reserve() {
  const int64_t mask_bytes = kMaxRows * mask_words() * 4;
  const bool ok = device_rows_.AllocateOnce(device(), kMaxRows * kSampleRowBytes + kAlsoBytes) &&
                  device_tokens_.AllocateOnce(device(), kMaxRows * 4) &&
                  device_masks_.AllocateOnce(device(), mask_bytes) &&
                  staged_tokens_.AllocateOnce(device(), kMaxRows * 4) &&
                  staged_masks_.AllocateOnce(device(), mask_bytes);
  return ok ? tables_.Reserve() : ResourceExhausted("no memory for the draws of a step");
}

Status DeviceRound::MakeStep() {
  step_.Clear();
  caches_.clear();
  for (const RoundSequence& s : sequences_) {
    SessionImpl& session = *s.live->session;
    const int64_t start = LengthOf(session), begin = step_.num_tokens(), n = static_cast<int64_t>(s.tokens.size());
    DSV4_RETURN_IF_ERROR(CheckTokens(info_, start, s.tokens));
    DSV4_RETURN_IF_ERROR(ReserveKv(ranks_.recordings(), [&] { return session.caches().Reserve(start + n); }));
    session.ReserveTokens(static_cast<size_t>(n) + 1);
    step_.Add(s.tokens, session.cache().View(start, begin, begin + n));
    for (int64_t i = 0; i < n; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
    caches_.push_back(&session.caches());
  }
  DSV4_CHECK(step_.num_tokens() <= kMaxRows);
  return {};
}

void DeviceRound::PlaceSamplers() {
  for (const RoundSequence& s : sequences_) {
    const size_t at = s.live->item;
    const auto known = placed_.find(at);
    if (known != placed_.end() && known->second.also.size() <= kMostAlso) continue;
    SampleRow row = tables_.Place(at, *s.live->sampler);
    row.counts = false;
    placed_.insert_or_assign(at, Placed{row, {}});
  }
}

void DeviceRound::AddRows(size_t i) {
  const RoundSequence& s = sequences_[i];
  const Placed& placed = placed_.at(s.live->item);
  SampleRow row = placed.row;
  row.num_outputs = s.live->sampler->num_outputs();
  if (s.live->sampler->has_penalties()) {
    row.also = reinterpret_cast<const int32_t*>(device_rows_.data() + kMaxRows * kSampleRowBytes) + also_.size();
    row.num_also = static_cast<int32_t>(placed.also.size());
    also_.insert(also_.end(), placed.also.begin(), placed.also.end());
    also_.insert(also_.end(), s.tokens.begin() + 1, s.tokens.end());
  }
  for (size_t j = 0; j < s.tokens.size(); ++j) {
    rows_.push_back(row);
    ++row.num_outputs;
    if (row.also != nullptr) ++row.num_also;
  }
}

// The sequence's first row, or the one that is drawn next, draws what its item allows now.
void DeviceRound::PlaceMask(size_t i) {
  const std::span<const uint32_t> allowed = sequences_[i].item->allowed();
  const int64_t at = static_cast<int64_t>(i) * mask_words() * 4;
  auto* const mask = reinterpret_cast<uint32_t*>(staged_masks_.data() + at);
  if (allowed.empty()) {
    std::fill_n(mask, mask_words(), ~0u);
  } else {
    std::copy_n(allowed.begin(), mask_words(), mask);
  }
  device().Upload(device_masks_.data() + at, mask, mask_words() * 4);
}

Status DeviceRound::DrawRows(int64_t first, int64_t count) {
  auto* rows = reinterpret_cast<SampleRow*>(device_rows_.data()) + first;
  auto* tokens = reinterpret_cast<int32_t*>(device_tokens_.data()) + first;
  device().Upload(rows, rows_.data() + first, count * kSampleRowBytes);
  Sample(ranks_.leader().context(), {.logits = ranks_.leader().Logits(first + count).Rows(first, count),
                                     .rows = rows,
                                     .tokens = {tokens, DType::kI32, {count}}});
  device().DownloadLater(staged_tokens_.data() + first * 4, tokens, count * 4);
  return device().Wait(device().Mark());
}

Status DeviceRound::Run(std::span<const RoundSequence> sequences) {
  sequences_ = sequences;
  DSV4_RETURN_IF_ERROR(Reserve());
  DSV4_RETURN_IF_ERROR(MakeStep());
  ranks_.Reserve(StepRows(step_.num_tokens()), StepRows(step_.num_tokens()));
  PlaceSamplers();
  was_first_ = ranks_.RecordsNext(step_, Regime::kDecode);
  DSV4_RETURN_IF_ERROR(ranks_.Forward(step_, Regime::kDecode, caches_, {}));

  rows_.clear(), also_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    AddRows(i);
    if (!sequences[i].item->allowed) continue;
    PlaceMask(i);
    SampleRow& first = rows_[rows_.size() - sequences[i].tokens.size()];
    first.allowed = reinterpret_cast<const uint32_t*>(device_masks_.data()) + static_cast<int64_t>(i) * mask_words();
  }
  if (!also_.empty()) {
    device().Upload(device_rows_.data() + kMaxRows * kSampleRowBytes, also_.data(),
                    static_cast<int64_t>(also_.size()) * 4);
  }
  if (!DrawRows(0, step_.num_tokens()).ok()) return ranks_.status();  // it names the rank
  for (const RoundSequence& s : sequences) s.live->session->Commit(s.tokens);
  return {};
}

Result<SampledToken> DeviceRound::Draw(size_t i, size_t row) {
  const RoundSequence& s = sequences_[i];
  const int64_t at = step_.sequences[i].begin + static_cast<int64_t>(row);
  if (row > 0 && s.item->allowed) {
    PlaceMask(i);
    rows_[static_cast<size_t>(at)].allowed = reinterpret_cast<const uint32_t*>(device_masks_.data()) +
                                             static_cast<int64_t>(i) * mask_words();
    if (!DrawRows(at, 1).ok()) return ranks_.status();
  }
  const SampledToken token{.id = reinterpret_cast<const int32_t*>(staged_tokens_.data())[at]};
  DSV4_RETURN_IF_ERROR(CheckDrawn(token.id));
  s.live->sampler->Count(token.id);
  if (s.live->sampler->has_penalties()) placed_.at(s.live->item).also.push_back(token.id);
  return token;
}

}  // namespace dsv4
