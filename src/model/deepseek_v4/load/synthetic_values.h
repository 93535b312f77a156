// The values of a synthetic model's tensors, for a device and for files. Tensor number n in the order of VisitWeights,
// counting tensors that exist, has the seed RandomBits(model.seed, n).
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/engine.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/schema.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Every tensor with its shape and format (tight for experts that can be tight). The pointers only mark that it exists.
Weights SyntheticShapes(const Config& config, const SyntheticModel& model);

// The standard deviation of a matrix's values: 1 / sqrt(K), so that activations keep their magnitude; 1 for embeddings.
float SyntheticStd(const QuantTensor& m, WeightKind kind);

// The probability of each of E experts for a token with skewed routing. The seed orders the experts. The probability of
// the r-th expert falls with r^0.9. So in a layer of Flash a twentieth of the experts has 40 % of the choices and the
// rarest three quarters have 30 %, as in published counts of the released model.
std::vector<double> SkewedShares(const Config& config, uint64_t seed);

// Values close to 1: right for norms and gains, harmless for biases and sinks. With skewed routing the router's bias
// gives experts the probabilities of SkewedShares, for logits of unit variance.
std::vector<float> SyntheticVector(const WeightRow& row, const Config& config, const SyntheticModel& model,
                                   int64_t count, uint64_t seed);

// Distinct experts for every token id, [V, A].
std::vector<int32_t> SyntheticHashTable(const Config& config, const SyntheticModel& model, uint64_t seed);

}  // namespace dsv4::deepseek_v4
