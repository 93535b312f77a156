#include <algorithm>

#include "device/launch.cuh"
#include "ops/digest/digest.h"

namespace dsv4 {

namespace {

constexpr int kDigestThreads = 256, kWordsOfThread = 16, kBlocksOfMultiprocessor = 8;

// The `count` first bytes at `p`, little-endian.
__device__ uint64_t WordOfBytes(const uint8_t* p, int64_t count) {
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) word |= static_cast<uint64_t>(p[i]) << (8 * i);
  return word;
}

// `aligned`: `data` is a multiple of 8. Neighbouring threads read neighbouring words.
__global__ void __launch_bounds__(kDigestThreads)
    DigestKernel(const uint8_t* data, int64_t bytes, bool aligned, unsigned long long* sum) {
  AllowNext();
  WaitForPrevious();
  const int64_t words = bytes / 8, threads = static_cast<int64_t>(gridDim.x) * kDigestThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kDigestThreads + threadIdx.x;
  uint64_t own = 0;
  if (aligned) {
    const uint64_t* const whole = reinterpret_cast<const uint64_t*>(data);
#pragma unroll 4
    for (int64_t i = first; i < words; i += threads) own += DigestTerm(whole[i], static_cast<uint64_t>(i));
  } else {
    for (int64_t i = first; i < words; i += threads)
      own += DigestTerm(WordOfBytes(data + 8 * i, 8), static_cast<uint64_t>(i));
  }
  if (first == 0 && bytes % 8 != 0)
    own += DigestTerm(WordOfBytes(data + 8 * words, bytes % 8), static_cast<uint64_t>(words));
  for (int lane = 16; lane > 0; lane /= 2) own += __shfl_down_sync(0xffffffffu, own, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, static_cast<unsigned long long>(own));
}

}  // namespace

void DigestCuda(const ExecContext& ctx, const DigestArgs& a) {
  constexpr int64_t kBytesOfBlock = 8 * kDigestThreads * kWordsOfThread;
  const int64_t blocks = std::min((a.bytes + kBytesOfBlock - 1) / kBytesOfBlock,
                                  static_cast<int64_t>(ctx.gpu.multiprocessors) * kBlocksOfMultiprocessor);
  const bool aligned = reinterpret_cast<uintptr_t>(a.data) % 8 == 0;
  Launch(ctx, DigestKernel, dim3(static_cast<unsigned>(std::max<int64_t>(blocks, 1))), dim3(kDigestThreads), 0, a.data,
         a.bytes, aligned, reinterpret_cast<unsigned long long*>(a.sum.i64()));
}

}  // namespace dsv4
