// The arithmetic of one token's mixes on a GPU; mix.h is for the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dsv4::hc {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// 1 / x of a normal x > 0 within 2^-23.9 (every x in [0.5, 2) was tested): a first guess from the exponent, within 13
// %, then two cubic iterations. Four at a time take less time than in the special function unit.
__device__ __forceinline__ float Reciprocal(float x) {
  float y = __uint_as_float(0x7EF311C3u - __float_as_uint(x));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float error = fmaf(-x, y, 1.0f);
    y = fmaf(y, fmaf(error, error, error), y);
  }
  return y;
}

// comb = A scaled by rows and columns: A[j, k] / (row[j] * column[k]). A division by (sum + eps) multiplies a factor by
// its sum + eps, which needs only A and the factors: row'[j] = sum_k A[j, k] / column[k] + eps * row[j].
// One thread; A [H, H] (source, destination) holds logits and becomes comb.
template <int kStreams>
__device__ __forceinline__ void SinkhornInRegisters(float (&a)[kStreams][kStreams], int iters, float eps) {
  float row[kStreams], column[kStreams], inverse_row[kStreams], inverse_column[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    float largest = a[j][0], sum = 0;
#pragma unroll
    for (int k = 1; k < kStreams; ++k) largest = fmaxf(largest, a[j][k]);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) sum += a[j][k] = expf(a[j][k] - largest);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) a[j][k] = fmaf(a[j][k], Reciprocal(sum), eps);
    row[j] = inverse_row[j] = column[j] = inverse_column[j] = 1;
  }
  for (int iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        float sum[2] = {eps * row[j], 0.0f};  // two short chains
#pragma unroll
        for (int k = 0; k < kStreams; ++k) sum[k % 2] = fmaf(a[j][k], inverse_column[k], sum[k % 2]);
        row[j] = sum[0] + sum[1];
        inverse_row[j] = Reciprocal(row[j]);
      }
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      float sum[2] = {eps * column[k], 0.0f};
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sum[j % 2] = fmaf(a[j][k], inverse_row[j], sum[j % 2]);
      column[k] = sum[0] + sum[1];
      inverse_column[k] = Reciprocal(column[k]);
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) a[j][k] = a[j][k] * inverse_row[j] * inverse_column[k];
  }
}

// The same by one warp for any H <= 8, in shared memory.
__device__ __forceinline__ void SinkhornInShared(float* a, int h, int iters, float eps) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if (lane < h) {
    float* row = a + lane * h;
    float largest = row[0], sum = 0;
    for (int k = 1; k < h; ++k) largest = fmaxf(largest, row[k]);
    for (int k = 0; k < h; ++k) sum += row[k] = expf(row[k] - largest);
    for (int k = 0; k < h; ++k) row[k] = row[k] / sum + eps;
  }
  __syncwarp();
  for (int iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
      if (lane < h) {
        float sum = eps;
        for (int k = 0; k < h; ++k) sum += a[lane * h + k];
        for (int k = 0; k < h; ++k) a[lane * h + k] /= sum;
      }
      __syncwarp();
    }
    if (lane < h) {
      float sum = eps;
      for (int j = 0; j < h; ++j) sum += a[j * h + lane];
      for (int j = 0; j < h; ++j) a[j * h + lane] /= sum;
    }
    __syncwarp();
  }
}

// The sum of 16 values a stride apart, in the order of a butterfly over 16 lanes.
__device__ __forceinline__ float SixteenSum(const float* p, int stride) {
  float v[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = p[i * stride];
#pragma unroll
  for (int o = 8; o > 0; o /= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < o) v[i] += v[i + o];
    }
  }
  return v[0];
}

}  // namespace dsv4::hc
