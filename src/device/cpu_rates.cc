#include "device/cpu_rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "device/cpu_features.h"
#include "device/device.h"

namespace dsv4 {

namespace {

constexpr int kRuns = 7;

template <typename Fn>
double BestSeconds(const Fn& fn) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (run == 0 || s < best) best = s;
  }
  return best;
}

// Keeps the compiler from removing a measuring loop whose result is unused.
template <typename T>
void Keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

void ReadPlain(const uint8_t* p, int64_t bytes) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, p + i, 64);
    for (int j = 0; j < 8; ++j) sum[j] += words[j];
  }
  Keep(sum);
}

constexpr int kChains = 12;  // independent sums: two units with a latency of four cycles need at least eight
constexpr int64_t kSteps = int64_t{1} << 21;

void FmaPlain() {
  float sum[kChains][4];
  for (auto& chain : sum) std::fill_n(chain, 4, 1.0f);
  float a = 0.999f, b = 0.001f;
  asm volatile("" : "+m"(a), "+m"(b));
  for (int64_t i = 0; i < kSteps; ++i) {
    for (auto& chain : sum) {
      for (float& x : chain) x = x * a + b;
    }
  }
  Keep(sum);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void ReadAvx2(const uint8_t* p, int64_t bytes) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
  }
  Keep(sum);
}

__attribute__((target("avx2,fma"))) void FmaAvx2() {
  __m256 sum[kChains];
  for (__m256& s : sum) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
  }
  Keep(sum);
}

__attribute__((target("avx512f"))) void FmaAvx512() {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm512_fmadd_ps(sum[j], a, b);
  }
  Keep(sum);
}

#endif

}  // namespace

Result<double> CpuReadRate(ThreadPool* pool) {
  constexpr int64_t kBlock = 1 << 16, kBlocks = 1 << 13;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Device> host, Device::Open("cpu"));
  DeviceBuffer buffer;
  if (!buffer.Allocate(*host, kBlock * kBlocks)) return ResourceExhausted("no memory to measure the read rate with");
  uint8_t* bytes = buffer.data();
  ParallelFor(pool, kBlocks, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    std::memset(bytes + begin * kBlock, 1, static_cast<size_t>((end - begin) * kBlock));
  });
  auto read = ReadPlain;
#if defined(__x86_64__)
  if (CpuHasAvx2()) read = ReadAvx2;
#endif
  const double s = BestSeconds([&] {
    ParallelFor(pool, kBlocks, /*grain=*/1,
                [&](int64_t begin, int64_t end, int) { read(bytes + begin * kBlock, (end - begin) * kBlock); });
  });
  return static_cast<double>(kBlock * kBlocks) / s;
}

double CpuFmaRate(ThreadPool* pool) {
  auto run = FmaPlain;
  int64_t lanes = 4;
#if defined(__x86_64__)
  if (CpuHasAvx2()) run = FmaAvx2, lanes = 8;
  if (CpuHasAvx512()) run = FmaAvx512, lanes = 16;
#endif
  const int64_t threads = pool == nullptr ? 1 : pool->num_threads();
  const double s = BestSeconds([&] {
    ParallelFor(pool, threads, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) run();
    });
  });
  return static_cast<double>(threads * kSteps * kChains * lanes) / s;
}

}  // namespace dsv4
