// From weights in mapped files to weights in a device's memory, in the layout that its kernels want.
#pragma once

#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/weights.h"

namespace dsv4::deepseek_v4 {

// Bytes that UploadWeights takes of the device's memory, once it is done.
int64_t DeviceWeightBytes(const Weights& weights);

// What loading takes besides: pinned memory of the host, and as much on the device.
int64_t UploadStagingBytes();

// Matrices become tiles (ops/pack_weight/pack_weight.h), packed on the device; embedding table, mHC mixes and F32
// matrices keep their rows. Parts of `source`'s files (null: none) are read by several threads, past the page cache
// where that helps. `progress(done, total)` in bytes of the files; false stops with kCancelled. Fills `times` from
// `allocate` on (may be null). Errors: kResourceExhausted, kUnsupported (a layout that the device's kernels do not
// take), kDataLoss (a file that cannot be read), kInternal. The result does not need `host`.
Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host, const TensorSource* source,
                              const std::function<bool(int64_t done, int64_t total)>& progress, LoadTimes* times);

}  // namespace dsv4::deepseek_v4
