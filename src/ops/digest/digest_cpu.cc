// The reference's sum, several words at a time, so that memory and not the arithmetic limits it.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/digest/digest.h"
#include "ops/simd.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kBlockWords = 1 << 14;  // the smallest part of a thread, 128 KiB

// Words first .. end - 1, all of them whole.
uint64_t SumOfWords(const uint8_t* data, int64_t first, int64_t end) {
  uint64_t sum = 0;
  uint64_t step = static_cast<uint64_t>(first + 1) * kDigestStep;
  for (int64_t i = first; i < end; ++i, step += kDigestStep) {
    uint64_t word;
    std::memcpy(&word, data + 8 * i, sizeof(word));
    sum += MixBits(word + step);
  }
  return sum;
}

}  // namespace

void DigestCpu(const ExecContext& ctx, const DigestArgs& a) {
  const int64_t words = a.bytes / 8;
  std::atomic<uint64_t> sum{0};
  ParallelFor(ctx.pool, (words + kBlockWords - 1) / kBlockWords, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    sum += SumOfWords(a.data, begin * kBlockWords, std::min(end * kBlockWords, words));
  });
  if (const int64_t rest = a.bytes % 8; rest > 0) {
    uint64_t word = 0;
    std::memcpy(&word, a.data + 8 * words, static_cast<size_t>(rest));
    sum += DigestTerm(word, static_cast<uint64_t>(words));
  }
  *a.sum.i64() = static_cast<int64_t>(static_cast<uint64_t>(*a.sum.i64()) + sum);
}

}  // namespace dsv4::DSV4_ISA
