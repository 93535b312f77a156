#include "model/deepseek_v4/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dsv4::deepseek_v4 {

std::vector<float> PlainRopeFrequencies(const Config& config) {
  std::vector<float> f;
  for (int64_t i = 0; i < config.rope_dim / 2; ++i) {
    f.push_back(static_cast<float>(
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rope_dim))));
  }
  return f;
}

std::vector<float> CompressRopeFrequencies(const Config& config) {
  const double dim = static_cast<double>(config.rope_dim), theta = config.compress_rope_theta;
  // The index of the pair that makes `turns` rotations over the original context.
  const auto correction = [&](double turns) {
    return dim * std::log(config.yarn_original_positions / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(theta));
  };
  const double low = std::clamp(std::floor(correction(config.yarn_beta_fast)), 0.0, dim - 1);
  double high = std::clamp(std::ceil(correction(config.yarn_beta_slow)), 0.0, dim - 1);
  if (high == low) high += 0.001;  // YaRN's usual guard against an empty ramp
  std::vector<float> f;
  for (int64_t i = 0; i < config.rope_dim / 2; ++i) {
    const double base = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f.push_back(static_cast<float>(base * (1.0 - ramp) + base / config.yarn_factor * ramp));
  }
  return f;
}

}  // namespace dsv4::deepseek_v4
