// Detects whether two models have the same weights, from samples of every tensor.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "dsv4/status.h"
#include "model/model.h"

namespace dsv4 {

// A 64-bit digest of any data (FNV-1a), piece by piece.
inline constexpr uint64_t kDigestBegin = 0xCBF29CE484222325u;
void AddToDigest(uint64_t* digest, const void* data, int64_t bytes);

// A digest of the sizes of all codes, scales and vectors, each expert's included, of their global scales, and of 256
// bytes at two places of each. A difference only elsewhere is not detected. Errors: kResourceExhausted, the device's.
// slice: of one of LoadedModel::num_slices; -1: of the weights that are not sliced.
Result<uint64_t> WeightDigest(const LoadedModel& model, Device& device, int slice = -1);

}  // namespace dsv4
