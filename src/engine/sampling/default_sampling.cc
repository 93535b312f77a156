// ReadDefaultSampling.
#include <cmath>
#include <limits>

#include "base/generation_config.h"
#include "dsv4/sampling.h"

namespace dsv4 {

namespace {

// Takes the field if its value is one that the sampler accepts.
template <typename T>
void Take(const std::optional<double>& value, T SamplingParams::*field, SamplingParams* params) {
  if (!value || std::abs(*value) > 1e9) return;
  SamplingParams wanted = *params;
  wanted.*field = static_cast<T>(*value);
  if (ValidateSampling(wanted, std::numeric_limits<TokenId>::max()).ok()) *params = wanted;
}

}  // namespace

Result<SamplingParams> ReadDefaultSampling(const std::string& model_dir) {
  DSV4_ASSIGN_OR_RETURN(const GenerationConfig config, ReadGenerationConfig(model_dir));
  SamplingParams params;
  Take(config.temperature, &SamplingParams::temperature, &params);
  Take(config.top_k, &SamplingParams::top_k, &params);
  Take(config.top_p, &SamplingParams::top_p, &params);
  Take(config.min_p, &SamplingParams::min_p, &params);
  Take(config.repetition_penalty, &SamplingParams::repeat_penalty, &params);
  return params;
}

}  // namespace dsv4
