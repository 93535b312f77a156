#include "engine/decode_steps.h"

#include <algorithm>

#include "base/check.h"
#include "ops/advance/advance.h"

namespace dsv4 {

namespace {

constexpr int64_t kRowBytes = static_cast<int64_t>(sizeof(SampleRow));
constexpr int64_t kBiasBytes = 4 * static_cast<int64_t>(DecodeSteps::kMaxBiased);  // ids or values

int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

}  // namespace

int64_t DecodeSteps::Bytes(int64_t vocab_size) {
  return kMaxSequences * (kRowBytes + 4 + 4 * MaskWords(vocab_size) + 4 * vocab_size + 2 * kBiasBytes);
}

DecodeSteps::~DecodeSteps() {
  (void)device().Synchronize();
  for (int32_t* p : arrived_) {
    if (p != nullptr) device().FreeStaging(p);
  }
  if (staged_masks_ != nullptr) device().FreeStaging(staged_masks_);
}

bool DecodeSteps::ReserveStaging() {
  for (int32_t*& p : arrived_) {
    if (p == nullptr) p = static_cast<int32_t*>(device().AllocateStaging(kMaxSequences * 4));
    if (p == nullptr) return false;
  }
  if (staged_masks_ == nullptr)
    staged_masks_ = static_cast<uint32_t*>(device().AllocateStaging(kMaxSequences * 4 * mask_words()));
  return staged_masks_ != nullptr;
}

Status DecodeSteps::Reserve() {
  const auto take = [this](DeviceBuffer& buffer, int64_t bytes_each) {
    return buffer.data() != nullptr || buffer.Allocate(device(), kMaxSequences * bytes_each);
  };
  const bool ok = take(rows_, kRowBytes) && take(tokens_, 4) && take(masks_, 4 * mask_words()) &&
                  take(counts_, 4 * vocab_size_) && take(bias_, 2 * kBiasBytes) && ReserveStaging();
  return ok ? Status{} : ResourceExhausted("no memory for the buffers of a decode loop");
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
    const SamplerImpl& sampler = *draws[i].sampler;
    const SamplingParams& p = sampler.params();
    SampleRow row{.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .repeat_penalty = p.repeat_penalty,
                  .presence_penalty = p.presence_penalty, .frequency_penalty = p.frequency_penalty,
                  .top_k = static_cast<int32_t>(std::min(p.top_k, vocab_size_)), .seed = sampler.seed(),
                  .num_outputs = sampler.num_outputs()};
    if (sampler.has_penalties()) PlaceCounts(i, sampler, &row);
    if (!p.logit_bias.empty()) PlaceBias(i, sampler, &row);
    if (draws[i].masked) row.allowed = reinterpret_cast<const uint32_t*>(masks_.data()) + masks_of_[i] * mask_words();
    rows.push_back(row);
  }
  rows.resize(static_cast<size_t>(sampled_.dim(0)), {.temperature = 0});  // of idle rows
  device().Upload(rows_.data(), rows.data(), static_cast<int64_t>(rows.size()) * kRowBytes);
}

void DecodeSteps::PlaceCounts(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const int64_t v = vocab_size_;
  std::vector<uint16_t> counts(static_cast<size_t>(2 * v));
  for (TokenId id = 0; id < v; ++id) {
    counts[static_cast<size_t>(id)] = sampler.is_seen(id) ? 1 : 0;
    counts[static_cast<size_t>(v + id)] = static_cast<uint16_t>(std::min<int64_t>(sampler.output_count(id), 65535));
  }
  uint8_t* const at = counts_.data() + static_cast<int64_t>(i) * 4 * v;
  device().Upload(at, counts.data(), 4 * v);
  row->prompt_count = reinterpret_cast<const uint16_t*>(at);
  row->output_count = reinterpret_cast<uint16_t*>(at) + v;
}

void DecodeSteps::PlaceBias(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const auto& wanted = sampler.params().logit_bias;
  DSV4_CHECK(wanted.size() <= kMaxBiased);
  const auto n = static_cast<int64_t>(wanted.size());
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (const auto& [id, bias] : wanted) ids.push_back(id), values.push_back(bias);
  uint8_t* const at = bias_.data() + static_cast<int64_t>(i) * 2 * kBiasBytes;
  device().Upload(at, ids.data(), 4 * n);
  device().Upload(at + kBiasBytes, values.data(), 4 * n);
  row->num_bias = static_cast<int32_t>(n);
  row->bias_ids = reinterpret_cast<const int32_t*>(at);
  row->bias = reinterpret_cast<const float*>(at + kBiasBytes);
}

void DecodeSteps::DrawAll() {
  Sample(runner_.context(),
         {.logits = logits_, .rows = reinterpret_cast<SampleRow*>(rows_.data()), .tokens = sampled_});
  Advance(runner_.context(), {.sampled = sampled_, .tokens = view_.tokens, .positions = view_.positions,
                              .sequences = const_cast<SequenceView*>(view_.sequences)});
}

void DecodeSteps::RunModel() {
  runner_.Queue(view_, {});
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
  return std::span<const int32_t>(arrived_[at], num_sequences_);
}

}  // namespace dsv4
