#include <algorithm>

#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/index_topk/index_topk.h"
#include "ops/index_topk/select.cuh"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kThreads = 256;
constexpr int kKeyTile = 64;   // keys of a block's step
constexpr int kHeadTile = 16;  // heads decoded at a time
constexpr int kMaxDim = 512;
constexpr int64_t kMaxPart = 512;  // tokens whose scores are in memory at once

struct Keys {
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
  CompressorLayout layout;
};

// Scores in plain float32, for any format and shape: scores[t, w] for every visible w. Tokens that see no more than k
// rows need none. grid (key splits, tokens).
__global__ void __launch_bounds__(kThreads) ScoreKernel(const float* q, const float* weights, Keys keys, float* scores,
                                                        int64_t stride, int num_heads, int dim, int64_t k) {
  extern __shared__ float shared[];
  const int pitch = dim + 1;
  float* key = shared;                         // [kKeyTile, pitch]
  float* head = shared + kKeyTile * pitch;     // [kHeadTile, pitch]
  float* part = head + kHeadTile * pitch;      // [4, kKeyTile]
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, visible = (keys.positions[t] + 1) / keys.layout.ratio;
  if (visible <= k) return;
  const SequenceView& seq = keys.sequences[keys.sequence_of[t]];
  const int slot = threadIdx.x % kKeyTile, group = threadIdx.x / kKeyTile;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kKeyTile; first < visible; first += static_cast<int64_t>(gridDim.x) * kKeyTile) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kKeyTile), visible - first));
    for (int i = threadIdx.x; i < count * dim; i += kThreads) {
      const gpu::RowPointer row = gpu::EmittedRowAt(keys.layout, seq, first + i / dim);
      key[i / dim * pitch + i % dim] = gpu::DecodeChannel(keys.layout.row, row.data, row.scale, i % dim);
    }
    float sum = 0;
    for (int h0 = 0; h0 < num_heads; h0 += kHeadTile) {
      const int heads = min(kHeadTile, num_heads - h0);
      __syncthreads();
      for (int i = threadIdx.x; i < heads * dim; i += kThreads) {
        head[i / dim * pitch + i % dim] = q[(t * num_heads + h0) * dim + i];
      }
      __syncthreads();
      if (slot < count) {
        for (int h = group; h < heads; h += 4) {
          float dot = 0;
          for (int i = 0; i < dim; ++i) dot = fmaf(head[h * pitch + i], key[slot * pitch + i], dot);
          // not fmaxf, which would drop a NaN
          sum = fmaf(weights[t * num_heads + h0 + h], dot < 0 ? 0.0f : dot, sum);
        }
      }
    }
    part[group * kKeyTile + slot] = sum;
    __syncthreads();
    if (group == 0 && slot < count) {
      scores[t * stride + first + slot] = (part[slot] + part[kKeyTile + slot]) + (part[2 * kKeyTile + slot] + part[3 * kKeyTile + slot]);
    }
  }
}

__global__ void __launch_bounds__(topk::kThreads) SelectKernel(const float* scores, int64_t stride, const int64_t* positions,
                                                               int64_t ratio, int64_t k, int32_t* out) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, visible = (positions[t] + 1) / ratio;
  topk::SelectBlock(scores + t * stride, static_cast<int>(visible), static_cast<int>(k), out + t * k);
}

}  // namespace

void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& a) {
  const int64_t num_tokens = a.cache.num_tokens, num_heads = a.q.dim(1), dim = a.q.dim(2), k = a.topk_idxs.dim(1);
  DSV4_CHECK(dim <= kMaxDim, "index head dimension ", dim);
  if (num_tokens == 0 || k == 0) return;
  const int64_t most = std::min(num_tokens, kMaxPart), stride = ctx.scratch.bytes / most / 4;
  float* scores = reinterpret_cast<float*>(ctx.scratch.data);
  const size_t shared = static_cast<size_t>((kKeyTile + kHeadTile) * (dim + 1) + 4 * kKeyTile) * 4;
  for (int64_t done = 0; done < num_tokens; done += most) {
    const int64_t part = std::min(most, num_tokens - done);
    const Keys keys{a.cache.sequences, a.cache.sequence_of + done, a.cache.positions + done, a.cache.layer->index};
    const int64_t splits = std::max<int64_t>(1, CeilDiv(8 * NumSms(), part));
    Launch(ctx, ScoreKernel, dim3(static_cast<unsigned>(splits), static_cast<unsigned>(part)), dim3(kThreads), shared,
           a.q.f32() + done * num_heads * dim, a.weights.f32() + done * num_heads, keys, scores, stride,
           static_cast<int>(num_heads), static_cast<int>(dim), k);
    Launch(ctx, SelectKernel, dim3(static_cast<unsigned>(part)), dim3(topk::kThreads), 0, scores, stride, keys.positions,
           keys.layout.ratio, k, a.topk_idxs.i32() + done * k);
  }
}

}  // namespace dsv4
