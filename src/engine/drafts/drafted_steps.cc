#include "engine/drafts/drafted_steps.h"

#include <algorithm>

#include "base/check.h"
#include "engine/drafts/draft_chain.h"
#include "ops/accept_drafts/accept_drafts.h"

namespace dsv4 {

namespace {

constexpr int64_t kRoundSlots = DraftedSteps::kMaxRows;
// draft_step_: views, positions, tokens, which sequence a row is of
constexpr int64_t kRoundViewBytes = kRoundSlots * static_cast<int64_t>(sizeof(SequenceView));
constexpr int64_t kRoundStepBytes = kRoundViewBytes + kRoundSlots * (8 + 4 + 4);
// out_: what is drawn, drafted, how sure of it the module is, results
constexpr int64_t kRoundOutBytes = kRoundSlots * (4 + 4 + 4 + 8);
constexpr int64_t kMostKnownTokens = 1 << 14;  // tokens of all sequences
constexpr int64_t kKnownRowsBytes = kRoundSlots * static_cast<int64_t>(sizeof(KnownDraft));
constexpr int64_t kRoundKnownBytes = kKnownRowsBytes + kMostKnownTokens * 4;

}  // namespace

int64_t DraftedSteps::Bytes() {
  return 2 * kMaxRows * kSampleRowBytes + kRoundStepBytes + kRoundOutBytes + kRoundKnownBytes;
}

DraftedSteps::~DraftedSteps() { (void)device().Synchronize(); }

Status DraftedSteps::Allocate() {
  const bool ok = rows_.AllocateOnce(device(), 2 * kMaxRows * kSampleRowBytes) &&
                  draft_step_.AllocateOnce(device(), kRoundStepBytes) && out_.AllocateOnce(device(), kRoundOutBytes) &&
                  known_.AllocateOnce(device(), kRoundKnownBytes) &&
                  arrived_[0].AllocateOnce(device(), kRoundSlots * 8) &&
                  arrived_[1].AllocateOnce(device(), kRoundSlots * 8);
  return ok ? tables_.Reserve() : ResourceExhausted("no memory for rounds with drafts");
}

Status DraftedSteps::Begin(const Step& step, std::span<const DraftedSequence> sequences) {
  DSV4_RETURN_IF_ERROR(Allocate());
  num_sequences_ = static_cast<int64_t>(sequences.size());
  rows_each_ = step.num_tokens() / num_sequences_;
  DSV4_CHECK(rows_each_ * num_sequences_ == step.num_tokens() && rows_each_ >= 2 && rows_each_ <= kMostRows);
  repeated_ = {StepWork::kRound, num_sequences_, step.num_tokens()};
  view_ = runner_.Place(runner_.FillUp(step), Regime::kDecode);
  uint8_t* out = out_.data();
  const auto take = [&out](DType type, const Shape& shape, int64_t room) {
    const Tensor tensor{out, type, shape};
    out += room;
    return tensor;
  };
  sampled_ = take(DType::kI32, {view_.num_tokens()}, kRoundSlots * 4);
  drafted_ = take(DType::kI32, {rows_each_ - 1, num_sequences_}, kRoundSlots * 4);
  confidence_ = take(DType::kF32, {rows_each_ - 1, num_sequences_}, kRoundSlots * 4);
  results_ = take(DType::kI32, {num_sequences_, 2 * rows_each_}, kRoundSlots * 8);
  device().Clear(drafted_.data, kRoundSlots * 4);  // without a module all drafts are known
  PlaceDraftStep(step);
  PlaceRows(sequences);
  PlaceKnown(sequences);
  return {};
}

void DraftedSteps::PlaceDraftStep(const Step& step) {
  std::vector<uint8_t> staged(kRoundStepBytes);
  auto* const views = reinterpret_cast<SequenceView*>(staged.data());
  auto* const positions = reinterpret_cast<int64_t*>(staged.data() + kRoundViewBytes);
  auto* const tokens = reinterpret_cast<int32_t*>(positions + kRoundSlots);
  int32_t* const sequence_of = tokens + kRoundSlots;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    views[s] = step.sequences[static_cast<size_t>(s)];
    positions[s] = views[s].start;
    tokens[s] = step.tokens[static_cast<size_t>(views[s].begin)];
    sequence_of[s] = static_cast<int32_t>(s);
    views[s].begin = s, views[s].end = s + 1;
  }
  device().Upload(draft_step_.data(), staged.data(), kRoundStepBytes);
  uint8_t* const at = draft_step_.data();
  uint8_t* const tokens_at = at + kRoundViewBytes + kRoundSlots * 8;
  draft_view_ = {.tokens = {tokens_at, DType::kI32, {num_sequences_}},
                 .positions = {at + kRoundViewBytes, DType::kI64, {num_sequences_}},
                 .sequence_of = reinterpret_cast<const int32_t*>(tokens_at + kRoundSlots * 4),
                 .sequences = reinterpret_cast<const SequenceView*>(at),
                 .num_sequences = num_sequences_,
                 .logit_rows = {tokens_at + kRoundSlots * 4, DType::kI32, {num_sequences_}},
                 .most_each = 1};
}

// Row j of a sequence draws with the random number of its j-th next token, and counts the drafts in front as output:
// they lie in the step.
void DraftedSteps::PlaceRows(std::span<const DraftedSequence> sequences) {
  std::vector<SampleRow> all(2 * kMaxRows, {.temperature = 0});  // also of idle rows
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const SamplerImpl& sampler = *sequences[static_cast<size_t>(s)].sampler;
    SampleRow row = tables_.Place(static_cast<size_t>(s), sampler);
    row.counts = false;
    if (sampler.has_penalties()) row.also = view_.tokens.i32() + s * rows_each_ + 1;
    for (int64_t j = 0; j < rows_each_; ++j) {
      all[static_cast<size_t>(s * rows_each_ + j)] = row;
      ++row.num_outputs;
      if (row.also != nullptr) ++row.num_also;
    }
    all[static_cast<size_t>(kMaxRows + s)] = DraftRowOf(sampler, vocab_size_);
  }
  device().Upload(rows_.data(), all.data(), 2 * kMaxRows * kSampleRowBytes);
}

void DraftedSteps::PlaceKnown(std::span<const DraftedSequence> sequences) {
  std::vector<KnownDraft> known(static_cast<size_t>(kRoundSlots));
  auto* const tokens = reinterpret_cast<int32_t*>(known_.data() + kKnownRowsBytes);
  const int64_t room = kMostKnownTokens / num_sequences_;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const DraftedSequence& from = sequences[static_cast<size_t>(s)];
    const int64_t count = std::min(room, static_cast<int64_t>(from.known.size()));
    if (count == 0) continue;
    known[static_cast<size_t>(s)] = {.tokens = tokens + s * room, .from = from.known_from, .count = count};
    device().Upload(tokens + s * room, from.known.data(), count * 4);
  }
  device().Upload(known_.data(), known.data(), kKnownRowsBytes);
}

void DraftedSteps::Run() {
  ExecContext& ctx = runner_.context();
  if (runner_.model().draft().module != DraftModule::kNone)
    QueueDraftPlaces(runner_, draft_view_, draft_rows(), drafted_, confidence_);
  PlaceDrafts(ctx, {.drafted = drafted_,
                    .positions = view_.positions,
                    .known = reinterpret_cast<const KnownDraft*>(known_.data()),
                    .tokens = view_.tokens});
  runner_.Queue(view_, {});
  Sample(ctx, {.logits = runner_.Logits(view_.num_tokens()), .rows = rows(), .tokens = sampled_});
  AcceptDrafts(ctx, {.rows_each = rows_each_,
                     .sampled = sampled_,
                     .tokens = view_.tokens,
                     .positions = view_.positions,
                     .sequences = const_cast<SequenceView*>(view_.sequences),
                     .rows = rows(),
                     .draft_tokens = draft_view_.tokens,
                     .draft_positions = draft_view_.positions,
                     .draft_sequences = const_cast<SequenceView*>(draft_view_.sequences),
                     .draft_rows = draft_rows(),
                     .results = results_});
}

void DraftedSteps::Prepare() {
  runner_.recordings().Prepare(repeated_, [this] { Run(); });
}

void DraftedSteps::Queue(int64_t k) {
  if (runner_.BeginPass()) runner_.recordings().Run(repeated_, [this] { Run(); });
  const auto at = static_cast<size_t>(k % 2);
  device().DownloadLater(arrived_[at].data(), results_.data, results_.num_elements() * 4);
  marks_[at] = device().Mark();
}

Result<std::span<const int32_t>> DraftedSteps::Wait(int64_t k) {
  const auto at = static_cast<size_t>(k % 2);
  DSV4_RETURN_IF_ERROR(device().Wait(marks_[at]));
  return std::span(reinterpret_cast<const int32_t*>(arrived_[at].data()), static_cast<size_t>(results_.num_elements()));
}

}  // namespace dsv4
