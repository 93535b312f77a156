#include "engine/drafts/draft_chain.h"

#include "base/check.h"
#include "ops/advance/advance.h"

namespace dsv4 {

namespace {

constexpr int64_t kOutBytes = kMaxDraftTokens * DraftChain::kMaxSequences * 4;

}  // namespace

int64_t DraftChain::Bytes() { return kMaxSequences * kSampleRowBytes + 2 * kOutBytes; }

void QueueDraftPlaces(Runner& runner, const StepView& view, SampleRow* rows, const Tensor& tokens,
                      const Tensor& confidence) {
  const int64_t places = tokens.dim(0), s = tokens.dim(1);
  const Tensor every_token = tokens.Reshaped({places * s}), every_confidence = confidence.Reshaped({places * s});
  for (int64_t place = 0; place < places; ++place) {
    const Tensor drawn = every_token.Rows(place * s, s);
    const Tensor logits = runner.QueueDraft(view, place, every_confidence.Rows(place * s, s));
    Sample(runner.context(), {.logits = logits, .rows = rows, .tokens = drawn});
    Advance(runner.context(), {.sampled = drawn,
                               .tokens = view.tokens,
                               .positions = view.positions,
                               .sequences = const_cast<SequenceView*>(view.sequences)});
  }
}

DraftChain::~DraftChain() { (void)device().Synchronize(); }

Status DraftChain::Allocate() {
  const bool first = device_confidence_.data() == nullptr;
  const bool ok = device_rows_.AllocateOnce(device(), kMaxSequences * kSampleRowBytes) &&
                  device_tokens_.AllocateOnce(device(), kOutBytes) &&
                  device_confidence_.AllocateOnce(device(), kOutBytes) &&
                  staged_tokens_.AllocateOnce(device(), kOutBytes) &&
                  staged_confidence_.AllocateOnce(device(), kOutBytes);
  if (!ok) return ResourceExhausted("no memory for drafts");
  if (first) device().Clear(device_confidence_.data(), kOutBytes);  // MTP says nothing of it
  return {};
}

Status DraftChain::Begin(const Step& step, std::span<const SampleRow> rows, int64_t places) {
  const int64_t sequences = step.num_tokens();
  DSV4_CHECK(sequences <= kMaxSequences && places <= kMaxDraftTokens);
  DSV4_RETURN_IF_ERROR(Allocate());
  repeated_ = {StepWork::kDraft, sequences, places};
  view_ = runner_.Place(step, Regime::kDecode);
  device().Upload(device_rows_.data(), rows.data(), sequences * kSampleRowBytes);
  return {};
}

void DraftChain::Run() {
  const Shape shape{repeated_.rows, repeated_.sequences};
  QueueDraftPlaces(runner_, view_, reinterpret_cast<SampleRow*>(device_rows_.data()),
                   {device_tokens_.data(), DType::kI32, shape}, {device_confidence_.data(), DType::kF32, shape});
}

void DraftChain::Prepare() {
  runner_.recordings().Prepare(repeated_, [this] { Run(); });
}

void DraftChain::Queue() {
  if (runner_.BeginPass()) runner_.recordings().Run(repeated_, [this] { Run(); });
}

Status DraftChain::Wait() {
  const int64_t bytes = repeated_.sequences * repeated_.rows * 4;
  device().DownloadLater(staged_tokens_.data(), device_tokens_.data(), bytes);
  device().DownloadLater(staged_confidence_.data(), device_confidence_.data(), bytes);
  return device().Wait(device().Mark());
}

}  // namespace dsv4
