#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "base/sample_math.h"
#include "ops/sample/sample.h"

namespace dsv4 {

namespace {

struct Token {
  uint64_t rank, mass;
  double weight;
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The logits after biases, `allowed` and penalties.
std::vector<float> Adjusted(const float* logits, int64_t v, const SampleRow& row) {
  std::vector<float> adjusted(logits, logits + v);
  for (int32_t i = 0; i < row.num_bias; ++i) {
    float& x = adjusted[static_cast<size_t>(row.bias_ids[i])];
    x = sample::AddBias(x, row.bias[i]);
  }
  for (int64_t i = 0; i < v && row.allowed != nullptr; ++i) {
    if ((row.allowed[i / 32] >> (i % 32) & 1) == 0) adjusted[static_cast<size_t>(i)] = kMinusInfinity;
  }
  if (row.repeat_penalty != 1.0f || row.presence_penalty != 0 || row.frequency_penalty != 0) {
    for (int64_t i = 0; i < v; ++i) {
      const int prompt = row.prompt_count ? row.prompt_count[i] : 0;
      int outputs = row.output_count ? row.output_count[i] : 0;
      outputs += static_cast<int>(std::count(row.also, row.also + row.num_also, static_cast<int32_t>(i)));
      float& x = adjusted[static_cast<size_t>(i)];
      if (outputs + prompt > 0)
        x = sample::Penalise(x, row.repeat_penalty, row.presence_penalty, row.frequency_penalty, outputs);
    }
  }
  return adjusted;
}

// Keeps the top_k tokens, then of these the top_p tokens. After a cut the tokens are in order of rank.
void CutTokens(const SampleRow& row, int64_t v, std::vector<Token>* tokens) {
  const bool is_top_k = row.top_k > 0 && row.top_k < v;
  if (!is_top_k && row.top_p >= 1.0f) return;
  std::sort(tokens->begin(), tokens->end(), [](const Token& a, const Token& b) { return a.rank > b.rank; });
  if (is_top_k) tokens->resize(static_cast<size_t>(row.top_k));
  if (row.top_p >= 1.0f) return;
  uint64_t total = 0, before = 0;
  for (const Token& t : *tokens) total += t.mass;
  const double wanted = sample::WantedMass(row.top_p, total);
  size_t kept = 0;
  while (kept < tokens->size() && !sample::ReachesTopP(before, wanted)) before += (*tokens)[kept++].mass;
  tokens->resize(kept);
}

int32_t SampleOne(const float* logits, int64_t v, const SampleRow& row) {
  if (std::any_of(logits, logits + v, [](float x) { return std::isnan(x); })) return kSampleNan;
  if (std::all_of(logits, logits + v, [](float x) { return x == kMinusInfinity; })) return kSampleNothing;
  const std::vector<float> adjusted = Adjusted(logits, v, row);
  const auto first = std::max_element(adjusted.begin(), adjusted.end());
  const float largest = *first;
  if (largest == kMinusInfinity) return kSampleBanned;
  if (row.temperature == 0) return static_cast<int32_t>(first - adjusted.begin());

  std::vector<Token> tokens;  // in order of ids
  const double inverse = 1.0 / static_cast<double>(row.temperature);
  for (int64_t i = 0; i < v; ++i) {
    const float x = adjusted[static_cast<size_t>(i)];
    const double exponent = sample::Exponent(x, largest, inverse);
    tokens.push_back(
        {sample::RankOf(x, static_cast<int32_t>(i)), sample::Mass(exponent), sample::ExpNonPositive(exponent)});
  }
  CutTokens(row, v, &tokens);
  if (row.min_p > 0) std::erase_if(tokens, [&](const Token& t) { return t.weight < static_cast<double>(row.min_p); });
  const uint64_t draw = RandomBits(row.seed, row.num_outputs);
  double least = std::numeric_limits<double>::infinity();
  int32_t chosen = kSampleNan;  // never stays: the largest token has mass
  for (const Token& t : tokens) {
    if (t.mass == 0) continue;
    const int32_t id = sample::IdOf(t.rank);
    const double time = sample::RaceTime(sample::UniformOfRace(draw, id), t.mass);
    if (time < least || (time == least && id < chosen)) least = time, chosen = id;
  }
  return chosen;
}

}  // namespace

void SampleRef(const ExecContext&, const SampleArgs& a) {
  const int64_t v = a.logits.dim(1);
  for (int64_t r = 0; r < a.logits.dim(0); ++r) {
    const float* logits = a.logits.f32() + r * v;
    SampleRow& row = a.rows[r];
    const int32_t id = SampleOne(logits, v, row);
    a.tokens.i32()[r] = id;
    if (a.logprobs) {
      float logprob = std::numeric_limits<float>::quiet_NaN();
      if (id >= 0) {
        const float largest = *std::max_element(logits, logits + v);
        double sum = 0;
        for (int64_t i = 0; i < v; ++i) sum += sample::ExpNonPositive(sample::Exponent(logits[i], largest, 1.0));
        logprob = static_cast<float>(sample::Exponent(logits[id], largest, 1.0) - std::log(sum));
      }
      a.logprobs.f32()[r] = logprob;
    }
    if (id < 0 || !row.counts) continue;
    ++row.num_outputs;
    if (row.output_count != nullptr && row.output_count[id] < 65535) ++row.output_count[id];
  }
}

}  // namespace dsv4
