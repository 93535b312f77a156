// The arithmetic of one token's mixes, shared by every implementation of hc_pre and hc_head.
#pragma once

#include <cmath>
#include <cstdint>

namespace dsv4 {

inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// comb [H, H] (source, destination): logits in, doubly stochastic matrix out. See hc_pre.h.
inline void Sinkhorn(float* comb, int64_t h, int64_t iters, float eps) {
  for (int64_t j = 0; j < h; ++j) {  // softmax over the destination
    float* row = comb + j * h;
    float largest = row[0], sum = 0;
    for (int64_t k = 1; k < h; ++k) largest = row[k] > largest ? row[k] : largest;
    for (int64_t k = 0; k < h; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int64_t k = 0; k < h; ++k) row[k] = row[k] / sum + eps;
  }
  for (int64_t iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
      for (int64_t j = 0; j < h; ++j) {
        float sum = eps;
        for (int64_t k = 0; k < h; ++k) sum += comb[j * h + k];
        for (int64_t k = 0; k < h; ++k) comb[j * h + k] /= sum;
      }
    }
    for (int64_t k = 0; k < h; ++k) {
      float sum = eps;
      for (int64_t j = 0; j < h; ++j) sum += comb[j * h + k];
      for (int64_t j = 0; j < h; ++j) comb[j * h + k] /= sum;
    }
  }
}

}  // namespace dsv4
