// What a synthetic model's tensors hold: shared by making them on a device and writing them to files. Tensor number n
// of VisitWeights (of those that exist) has the seed RandomBits(model.seed, n).
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/engine.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/schema.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Every tensor with its format (of experts that can be tight, the tight one) and shape; pointers only mark what exists.
Weights SyntheticShapes(const Config& config, const SyntheticModel& model);

// Of a matrix's values: 1 / sqrt(K), so that activations keep their size; embeddings have 1.
float SyntheticStd(const QuantTensor& m, WeightKind kind);

// How likely a token has each of E experts where routing is skewed; their order is the seed's. Of the r-th in rank it
// falls with r^0.9: of a layer of Flash a twentieth of the experts has four tenths of the choices, the rarer three
// quarters have three tenths, as published counts of the released model say.
std::vector<double> SkewedShares(const Config& config, uint64_t seed);

// About 1: right for norms and gains, harmless for biases and sinks. With skewed routing the router's bias makes
// experts as likely as SkewedShares, for logits of unit variance.
std::vector<float> SyntheticVector(const WeightRow& row, const Config& config, const SyntheticModel& model,
                                   int64_t count, uint64_t seed);

// Distinct experts for every token id, [V, A].
std::vector<int32_t> SyntheticHashTable(const Config& config, const SyntheticModel& model, uint64_t seed);

}  // namespace dsv4::deepseek_v4
