#include "engine/sampling/sampler_tables.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace dsv4 {

namespace {

constexpr int64_t kBiasBytes = 4 * static_cast<int64_t>(SamplerTables::kMaxBiased);  // ids or values

}  // namespace

Status CheckDrawn(int32_t id) {
  if (id >= 0) return {};
  if (id == kSampleBanned) return InvalidArgument(kBannedAll);
  return Internal("sampler: the logits are NaN or all -inf; the model's weights or output are damaged");
}

SampleRow RowOf(const SamplerImpl& sampler, int64_t vocab_size) {
  const SamplingParams& p = sampler.params();
  return {.temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .repeat_penalty = p.repeat_penalty,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .top_k = static_cast<int32_t>(std::min(p.top_k, vocab_size)),
          .seed = sampler.seed(),
          .num_outputs = sampler.num_outputs()};
}

SampleRow DraftRowOf(const SamplerImpl& sampler, int64_t vocab_size) {
  SampleRow row = RowOf(sampler, vocab_size);
  row.repeat_penalty = 1, row.presence_penalty = row.frequency_penalty = 0;
  return row;
}

int64_t SamplerTables::Bytes(int64_t vocab_size) { return kMaxSequences * (4 * vocab_size + 2 * kBiasBytes); }

Status SamplerTables::Reserve() {
  const bool ok = counts_.AllocateOnce(device_, kMaxSequences * 4 * vocab_size_) &&
                  bias_.AllocateOnce(device_, kMaxSequences * 2 * kBiasBytes);
  return ok ? Status{} : ResourceExhausted("no memory for counts and biases of samplers");
}

SampleRow SamplerTables::Place(size_t i, const SamplerImpl& sampler) {
  SampleRow row = RowOf(sampler, vocab_size_);
  if (sampler.has_penalties()) PlaceCounts(i, sampler, &row);
  if (!sampler.params().logit_bias.empty()) PlaceBias(i, sampler, &row);
  return row;
}

void SamplerTables::PlaceCounts(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const int64_t v = vocab_size_;
  std::vector<uint16_t> counts(static_cast<size_t>(2 * v));
  for (TokenId id = 0; id < v; ++id) {
    counts[static_cast<size_t>(id)] = sampler.is_seen(id) ? 1 : 0;
    counts[static_cast<size_t>(v + id)] = static_cast<uint16_t>(std::min<int64_t>(sampler.output_count(id), 65535));
  }
  uint8_t* const at = counts_.data() + static_cast<int64_t>(i) * 4 * v;
  device_.Upload(at, counts.data(), 4 * v);
  row->prompt_count = reinterpret_cast<const uint16_t*>(at);
  row->output_count = reinterpret_cast<uint16_t*>(at) + v;
}

void SamplerTables::PlaceBias(size_t i, const SamplerImpl& sampler, SampleRow* row) {
  const auto& wanted = sampler.params().logit_bias;
  DSV4_CHECK(wanted.size() <= kMaxBiased);
  const auto n = static_cast<int64_t>(wanted.size());
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (const auto& [id, bias] : wanted) ids.push_back(id), values.push_back(bias);
  uint8_t* const at = bias_.data() + static_cast<int64_t>(i) * 2 * kBiasBytes;
  device_.Upload(at, ids.data(), 4 * n);
  device_.Upload(at + kBiasBytes, values.data(), 4 * n);
  row->num_bias = static_cast<int32_t>(n);
  row->bias_ids = reinterpret_cast<const int32_t*>(at);
  row->bias = reinterpret_cast<const float*>(at + kBiasBytes);
}

}  // namespace dsv4
