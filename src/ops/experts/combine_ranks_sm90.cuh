// The sum of a token's experts if every rank has a partial of it and needs the sums of its own rows. A row is sent to
// its rank as soon as it is computed, and travels while other rows are computed.
//
// It is a collective of arrays (device/exchange_bulk.cuh) whose chunks are rows. The order of additions is that of
// sum_ranks.
#pragma once

#include "device/exchange_bulk.cuh"
#include "ops/experts/experts.h"
#include "ops/rank_rows.h"

namespace dsv4::sm90 {

namespace {

constexpr int kCombineThreads = 256;

struct RowSums {
  ExchangeMemory memory;
  int rank;
  int64_t site, num_tokens;
  int64_t begin[kMaxRanks + 1];  // rows [begin[r], begin[r + 1]) are rank r's; every rank has some
};

// One block per row, the rows of other ranks first.
template <int Count>
__global__ void __launch_bounds__(kCombineThreads)
    CombineSendKernel(const float* outputs, const float* shared, float* y, int picked, int d, RowSums s) {
  AllowNext();
  WaitForPrevious();
  int64_t t = s.begin[s.rank + 1] + blockIdx.x;
  if (t >= s.num_tokens) t -= s.num_tokens;
  int owner = 0;
#pragma unroll
  for (int p = 1; p < Count; ++p) owner += t >= s.begin[p] ? 1 : 0;
  const bool sends = owner != s.rank;
  const uint32_t tag = ExchangeTag(s.memory, s.site);
  uint8_t* const array = BulkRow(s.memory, owner, tag, Count, s.rank);
  const int64_t row = t - s.begin[owner];
  float* const to = sends ? reinterpret_cast<float*>(array) + row * d : y + t * d;
  const float* const slots = outputs + t * picked * d;
  for (int c = static_cast<int>(threadIdx.x) * 4; c < d; c += kCombineThreads * 4) {
    float4 sum = *reinterpret_cast<const float4*>(shared + t * d + c);
    for (int a = 0; a < picked; ++a) {
      const float4 v = __ldcs(reinterpret_cast<const float4*>(slots + static_cast<int64_t>(a) * d + c));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    *reinterpret_cast<float4*>(to + c) = sum;
  }
  if (sends) RaiseFlag(s.memory, array, row, tag);
}

// This rank's rows of y become the sums of all ranks' partials.
template <int Count>
__global__ void __launch_bounds__(kCombineThreads) ReceiveSumKernel(float* y, int d, RowSums s) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(s.memory, s.site);
  const int64_t first = s.begin[s.rank], num_rows = s.begin[s.rank + 1] - first;
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (threadIdx.x < Count && static_cast<int>(threadIdx.x) != s.rank)
      AwaitChunk(s.memory, s.rank, static_cast<int>(threadIdx.x), Count, tag, s.site, row);
    __syncthreads();
    const float* parts[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      parts[p] = p == s.rank ? y + (first + row) * d
                             : reinterpret_cast<const float*>(BulkRow(s.memory, s.rank, tag, Count, p)) + row * d;
    }
    for (int c = static_cast<int>(threadIdx.x) * 4; c < d; c += kCombineThreads * 4)
      *reinterpret_cast<float4*>(y + (first + row) * d + c) = TreeOfFours<Count>(parts, c);
    __syncthreads();  // before the next row's flags are polled
  }
}

template <int Count>
void CombineRanks(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t tokens = a.x.dim(0), d = a.x.dim(1);
  RowSums s{.memory = ctx.ranks->memory, .rank = ctx.ranks->rank, .site = a.site, .num_tokens = tokens, .begin = {}};
  for (int r = 0; r < Count; ++r) s.begin[r + 1] = ShareOf(tokens, r, Count, kShareRows).end;
  Launch(ctx, CombineSendKernel<Count>, dim3(static_cast<unsigned>(tokens)), dim3(kCombineThreads), 0, a.outputs.f32(),
         a.shared.f32(), a.y.f32(), static_cast<int>(a.experts.dim(1)), static_cast<int>(d), s);
  Launch(ctx, ReceiveSumKernel<Count>, dim3(static_cast<unsigned>(4 * ctx.gpu.multiprocessors)), dim3(kCombineThreads),
         0, a.y.f32(), static_cast<int>(d), s);
}

}  // namespace

}  // namespace dsv4::sm90
