#include "engine/decode/decode_steps.h"

#include <algorithm>

#include "ops/advance/advance.h"

namespace dsv4 {

int64_t DecodeSteps::Bytes(int64_t vocab_size) {
  return SamplerTables::Bytes(vocab_size) + kMaxSequences * (kSampleRowBytes + 4 + 4 * SampleMaskWords(vocab_size));
}

DecodeSteps::~DecodeSteps() { (void)device().Synchronize(); }

Status DecodeSteps::Reserve() {
  const auto take = [this](auto& buffer, int64_t bytes_each) {
    return buffer.AllocateOnce(device(), kMaxSequences * bytes_each);
  };
  const bool ok = take(rows_, kSampleRowBytes) && take(tokens_, 4) && take(masks_, 4 * mask_words()) &&
                  take(arrived_[0], 4) && take(arrived_[1], 4) && take(staged_masks_, 4 * mask_words());
  return ok ? tables_.Reserve() : ResourceExhausted("no memory for the buffers of a decode loop");
}

Status DecodeSteps::Begin(const Step& step, std::span<const Draw> draws) {
  DSV4_RETURN_IF_ERROR(Reserve());
  masks_of_.clear();
  num_masks_ = 0;
  if (std::any_of(draws.begin(), draws.end(), [](const Draw& d) { return d.masked; })) {
    for (const Draw& d : draws) masks_of_.push_back(d.masked ? num_masks_++ : -1);
  }
  num_sequences_ = draws.size();
  view_ = runner_.Place(runner_.FillUp(step), Regime::kDecode);
  const int64_t n = view_.num_tokens();
  logits_ = runner_.Logits(n);
  sampled_ = {tokens_.data(), DType::kI32, {n}};
  PlaceRows(draws);
  return {};
}

void DecodeSteps::PlaceRows(std::span<const Draw> draws) {
  std::vector<SampleRow> rows;
  for (size_t i = 0; i < draws.size(); ++i) {
    SampleRow row = tables_.Place(i, *draws[i].sampler);
    if (draws[i].masked) row.allowed = reinterpret_cast<const uint32_t*>(masks_.data()) + masks_of_[i] * mask_words();
    rows.push_back(row);
  }
  rows.resize(static_cast<size_t>(sampled_.dim(0)), {.temperature = 0});  // of idle rows
  device().Upload(rows_.data(), rows.data(), static_cast<int64_t>(rows.size()) * kSampleRowBytes);
}

void DecodeSteps::DrawAll() {
  Sample(runner_.context(),
         {.logits = logits_, .rows = reinterpret_cast<SampleRow*>(rows_.data()), .tokens = sampled_});
  Advance(runner_.context(), {.sampled = sampled_,
                              .tokens = view_.tokens,
                              .positions = view_.positions,
                              .sequences = const_cast<SequenceView*>(view_.sequences)});
}

void DecodeSteps::RunModel() {
  runner_.Queue(view_, {});
  if (!masked()) DrawAll();
}

void DecodeSteps::QueueModel(int64_t k) {
  if (runner_.BeginPass()) runner_.recordings().Run(Repeated(WorkOfModel()), [this] { RunModel(); });
  if (!masked()) Fetch(k);
}

bool DecodeSteps::ModelRecordsNext() const { return runner_.recordings().RecordsNext(Repeated(WorkOfModel())); }

void DecodeSteps::PrepareModel() {
  runner_.recordings().Prepare(Repeated(WorkOfModel()), [this] { RunModel(); });
}

void DecodeSteps::TakeMasks(const DecodeSteps& other) {
  std::copy_n(other.staged_mask(0), num_masks_ * mask_words(), staged_mask(0));
}

std::span<uint32_t> DecodeSteps::MaskOf(size_t sequence) {
  if (!masked() || masks_of_[sequence] < 0) return {};
  return {staged_mask(masks_of_[sequence]), static_cast<size_t>(mask_words())};
}

void DecodeSteps::QueueDraw(int64_t k) {
  device().Upload(masks_.data(), staged_masks_.data(), num_masks_ * mask_words() * 4);
  runner_.recordings().Run(Repeated(StepWork::kDraw), [this] { DrawAll(); });
  Fetch(k);
}

void DecodeSteps::Fetch(int64_t k) {
  const auto at = static_cast<size_t>(k % 2);
  device().DownloadLater(arrived_[at].data(), sampled_.data, 4 * sampled_.dim(0));
  marks_[at] = device().Mark();
}

Result<std::span<const int32_t>> DecodeSteps::Wait(int64_t k) {
  const auto at = static_cast<size_t>(k % 2);
  DSV4_RETURN_IF_ERROR(device().Wait(marks_[at]));
  return std::span(reinterpret_cast<const int32_t*>(arrived_[at].data()), num_sequences_);
}

}  // namespace dsv4
