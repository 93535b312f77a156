// The sampler's loops over the vocabulary. They have versions for several vector widths, all with the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::internal {

inline constexpr int kTopPBins = 1024;

// The largest value. NaN: sets *has_nan.
float Largest(std::span<const float> values, bool* has_nan);

// weights[i] = exp((logits[i] - largest) * inverse_temperature): the largest logit has weight 1.
void Softmax(std::span<const float> logits, float largest, double inverse_temperature, std::vector<double>& weights);

// The weights as integers.
void Masses(const std::vector<double>& weights, std::vector<uint64_t>& masses);

// bins[i] = 32 bins per unit of distance from the largest logit, at the temperature; at most kTopPBins - 1. It never
// decreases as the logit falls.
void BinsOf(std::span<const float> logits, float largest, double inverse_temperature, std::vector<int32_t>& bins);

// Sets masses[i] to 0 if bins[i] > last.
void ClearBeyond(const std::vector<int32_t>& bins, int32_t last, std::vector<uint64_t>& masses);

}  // namespace dsv4::internal
