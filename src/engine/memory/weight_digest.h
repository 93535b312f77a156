// Detects whether two models have the same weights, from all their bytes.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "dsv4/status.h"
#include "model/model.h"

namespace dsv4 {

// A 64-bit digest of any data (FNV-1a), piece by piece.
inline constexpr uint64_t kDigestBegin = 0xCBF29CE484222325u;
void AddToDigest(uint64_t* digest, const void* data, int64_t bytes);

// Returns a digest of all codes, scales and vectors, each expert's included: sizes, global scales, and every byte
// (ops/digest). Reads all weights once, on the device. Binds the device to the calling thread. Errors:
// kResourceExhausted, the device's. slice: of one of LoadedModel::num_slices; -1: of the weights that are not sliced.
Result<uint64_t> WeightDigest(const LoadedModel& model, const ExecContext& ctx, Device& device, int slice = -1);

}  // namespace dsv4
