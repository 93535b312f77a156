#include "engine/decode_steps.h"

#include <algorithm>

#include "ops/advance/advance.h"

namespace dsv4 {

namespace {

constexpr int64_t kRowBytes = static_cast<int64_t>(sizeof(SampleRow));

}  // namespace

int64_t DecodeSteps::Bytes(int64_t vocab_size) {
  return kMaxSequences * (kRowBytes + 4 + 4 * vocab_size + (vocab_size + 31) / 32 * 4);
}

DecodeSteps::~DecodeSteps() {
  (void)device().Synchronize();
  for (int32_t* p : arrived_) {
    if (p != nullptr) device().FreeStaging(p);
  }
  if (staged_masks_ != nullptr) device().FreeStaging(staged_masks_);
}

Status DecodeSteps::Allocate() {
  if (arrived_[1] != nullptr) return {};
  bool ok = rows_.Allocate(device(), kMaxSequences * kRowBytes) && tokens_.Allocate(device(), kMaxSequences * 4);
  for (int32_t*& p : arrived_) {
    if (ok && p == nullptr) p = static_cast<int32_t*>(device().AllocateStaging(kMaxSequences * 4));
    ok = ok && p != nullptr;
  }
  return ok ? Status{} : ResourceExhausted("no memory for the buffers of a decode loop");
}

Status DecodeSteps::AllocateMasks() {
  const int64_t bytes = kMaxSequences * mask_words() * 4;
  if (masks_.data() == nullptr && !masks_.Allocate(device(), bytes))
    return ResourceExhausted("no memory for the tokens that are allowed");
  if (staged_masks_ == nullptr) staged_masks_ = static_cast<uint32_t*>(device().AllocateStaging(bytes));
  return staged_masks_ != nullptr ? Status{} : ResourceExhausted("no memory for the tokens that are allowed");
}

Status DecodeSteps::Begin(const Step& step, std::span<const Draw> draws) {
  DSV4_RETURN_IF_ERROR(Allocate());
  masks_of_.clear();
  num_masks_ = 0;
  if (std::any_of(draws.begin(), draws.end(), [](const Draw& d) { return d.masked; })) {
    DSV4_RETURN_IF_ERROR(AllocateMasks());
    for (const Draw& d : draws) masks_of_.push_back(d.masked ? num_masks_++ : -1);
  }
  view_ = runner_.Place(step, Regime::kDecode);
  const auto n = static_cast<int64_t>(draws.size());
  logits_ = runner_.Logits(n);
  sampled_ = {tokens_.data(), DType::kI32, {n}};
  return PlaceRows(draws);
}

Status DecodeSteps::PlaceRows(std::span<const Draw> draws) {
  std::vector<SampleRow> rows;
  for (size_t i = 0; i < draws.size(); ++i) {
    const SamplerImpl& sampler = *draws[i].sampler;
    const SamplingParams& p = sampler.params();
    SampleRow row{.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .repeat_penalty = p.repeat_penalty,
                  .presence_penalty = p.presence_penalty, .frequency_penalty = p.frequency_penalty,
                  .top_k = static_cast<int32_t>(std::min(p.top_k, vocab_size_)), .seed = sampler.seed(),
                  .num_outputs = sampler.num_outputs()};
    if (sampler.has_penalties()) DSV4_RETURN_IF_ERROR(PlaceCounts(i, sampler, &row));
    if (!p.logit_bias.empty()) DSV4_RETURN_IF_ERROR(PlaceBias(i, sampler, &row));
    if (draws[i].masked) row.allowed = reinterpret_cast<const uint32_t*>(masks_.data()) + masks_of_[i] * mask_words();
    rows.push_back(row);
  }
  device().Upload(rows_.data(), rows.data(), static_cast<int64_t>(rows.size()) * kRowBytes);
  return {};
}

Status DecodeSteps::PlaceCounts(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const int64_t v = vocab_size_;
  std::vector<uint16_t> counts(static_cast<size_t>(2 * v));
  for (TokenId id = 0; id < v; ++id) {
    counts[static_cast<size_t>(id)] = sampler.is_seen(id) ? 1 : 0;
    counts[static_cast<size_t>(v + id)] = static_cast<uint16_t>(std::min<int64_t>(sampler.output_count(id), 65535));
  }
  DeviceBuffer& buffer = counts_[i];
  if (buffer.data() == nullptr && !buffer.Allocate(device(), 4 * v))
    return ResourceExhausted("no memory for the counts of penalties");
  device().Upload(buffer.data(), counts.data(), 4 * v);
  row->prompt_count = reinterpret_cast<const uint16_t*>(buffer.data());
  row->output_count = reinterpret_cast<uint16_t*>(buffer.data()) + v;
  return {};
}

Status DecodeSteps::PlaceBias(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const auto& wanted = sampler.params().logit_bias;
  const auto n = static_cast<int64_t>(wanted.size());
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (const auto& [id, bias] : wanted) ids.push_back(id), values.push_back(bias);
  DeviceBuffer& buffer = bias_[i];
  if (buffer.bytes() < 8 * n && !buffer.Allocate(device(), 8 * n))
    return ResourceExhausted("no memory for the logit bias");
  device().Upload(buffer.data(), ids.data(), 4 * n);
  device().Upload(buffer.data() + 4 * n, values.data(), 4 * n);
  row->num_bias = static_cast<int32_t>(n);
  row->bias_ids = reinterpret_cast<const int32_t*>(buffer.data());
  row->bias = reinterpret_cast<const float*>(buffer.data() + 4 * n);
  return {};
}

void DecodeSteps::DrawAll() {
  Sample(runner_.context(),
         {.logits = logits_, .rows = reinterpret_cast<SampleRow*>(rows_.data()), .tokens = sampled_});
  Advance(runner_.context(), {.sampled = sampled_, .tokens = view_.tokens, .positions = view_.positions,
                              .sequences = const_cast<SequenceView*>(view_.sequences)});
}

void DecodeSteps::RunModel() {
  runner_.Queue(view_);
  if (!masked()) DrawAll();
}

void DecodeSteps::QueueModel(int64_t k) {
  if (runner_.BeginPass()) runner_.recordings().Run(WorkOfModel(), sampled_.dim(0), [this] { RunModel(); });
  if (!masked()) Fetch(k);
}

bool DecodeSteps::ModelRecordsNext() const { return runner_.recordings().RecordsNext(WorkOfModel(), sampled_.dim(0)); }

void DecodeSteps::PrepareModel() {
  runner_.recordings().Prepare(WorkOfModel(), sampled_.dim(0), [this] { RunModel(); });
}

void DecodeSteps::TakeMasks(const DecodeSteps& other) {
  std::copy_n(other.staged_masks_, num_masks_ * mask_words(), staged_masks_);
}

std::span<uint32_t> DecodeSteps::MaskOf(size_t sequence) {
  if (!masked() || masks_of_[sequence] < 0) return {};
  return {staged_masks_ + masks_of_[sequence] * mask_words(), static_cast<size_t>(mask_words())};
}

void DecodeSteps::QueueDraw(int64_t k) {
  device().Upload(masks_.data(), staged_masks_, num_masks_ * mask_words() * 4);
  runner_.recordings().Run(StepWork::kDraw, sampled_.dim(0), [this] { DrawAll(); });
  Fetch(k);
}

void DecodeSteps::Fetch(int64_t k) {
  const auto at = static_cast<size_t>(k % 2);
  device().DownloadLater(arrived_[at], sampled_.data, 4 * sampled_.dim(0));
  marks_[at] = device().Mark();
}

Result<std::span<const int32_t>> DecodeSteps::Wait(int64_t k) {
  const auto at = static_cast<size_t>(k % 2);
  DSV4_RETURN_IF_ERROR(device().Wait(marks_[at]));
  return std::span<const int32_t>(arrived_[at], static_cast<size_t>(sampled_.dim(0)));
}

}  // namespace dsv4
