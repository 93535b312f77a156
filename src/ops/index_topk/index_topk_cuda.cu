#include <algorithm>

#include "device/launch.cuh"
#include "ops/index_topk/index_topk.h"
#include "ops/index_topk/score.cuh"
#include "ops/index_topk/select_one.cuh"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxRows = 262144;  // a context of 2^20 tokens
constexpr int64_t kMaxFew = 128;      // tokens that have their own blocks for scores
constexpr int kMaxAlone = 4096;       // up to this many rows of one token a cluster of blocks costs more than it saves

unsigned Dim(int64_t n) { return static_cast<unsigned>(n); }

template <bool kFp4>
void LaunchScores(const ExecContext& ctx, const float* q, const float* weights, const topk::Keys& keys, float* scores,
                  int64_t stride, int64_t num_heads, int64_t k, int64_t num_tokens, bool one_sequence) {
  if (kFp4 && num_tokens == 1) {
    Launch(ctx, topk::ScoreOneKernel, dim3(Dim(ctx.gpu.multiprocessors)), dim3(topk::kScoreThreads),
           topk::ScoreSharedBytes(1), q, weights, keys, scores, num_heads, k, one_sequence);
  } else if (num_tokens <= kMaxFew) {
    const int64_t splits = num_tokens == 1 ? ctx.gpu.multiprocessors : CeilDiv(2 * ctx.gpu.multiprocessors, num_tokens);
    Launch(ctx, topk::ScoreKernel<kFp4, 1>, dim3(Dim(splits), Dim(num_tokens)), dim3(topk::kScoreThreads),
           topk::ScoreSharedBytes(1), q, weights, keys, scores, stride, num_heads, k, num_tokens);
  } else {
    const int64_t tiles = CeilDiv(num_tokens, topk::kTokensPerBlock),
                  splits = std::max<int64_t>(1, ctx.gpu.multiprocessors / tiles);
    Launch(ctx, topk::ScoreKernel<kFp4, topk::kTokensPerBlock>, dim3(Dim(splits), Dim(tiles)),
           dim3(topk::kScoreThreads), topk::ScoreSharedBytes(topk::kTokensPerBlock), q, weights, keys, scores, stride,
           num_heads, k, num_tokens);
  }
}

void LaunchSelect(const ExecContext& ctx, const float* scores, int64_t stride, const topk::Keys& keys, int64_t k,
                  int64_t num_tokens, int32_t* out) {
  const auto launch = [&](auto kernel, int64_t cluster, int threads, int cached_keys) {
    Launch(ctx, kernel, dim3(Dim(num_tokens * cluster)), dim3(static_cast<unsigned>(threads)),
           static_cast<size_t>(cached_keys) * 4, scores, stride, keys.positions, keys.layout.ratio, k, cached_keys,
           out);
  };
  // As many blocks as the GPU can run at once; keys are in the shared memory that they have.
  if (num_tokens == 1)
    Launch(ctx, topk::SelectOneKernel, dim3(topk::kOneCluster), dim3(topk::kOneThreads),
           static_cast<size_t>(topk::kOneKeys) * 4, scores, keys.positions, keys.layout.ratio, k, kMaxAlone, out);
  else if (num_tokens <= 16)
    launch(topk::SelectBy8Kernel, 8, 1024, 32768);
  else if (num_tokens <= 32)
    launch(topk::SelectBy4Kernel, 4, 1024, 32768);
  else if (num_tokens <= 128)
    launch(topk::SelectKernel, 1, 1024, 49152);
  else
    launch(topk::SelectManyKernel, 1, 512, 9216);
}

}  // namespace

void IndexTopkCuda(const ExecContext& ctx, const IndexTopkArgs& a) {
  const int64_t num_tokens = a.cache.num_tokens, num_heads = a.q.dim(1), dim = a.q.dim(2), k = a.topk_idxs.dim(1);
  DSV4_CHECK(dim <= kMaxIndexDimOnGpu, "index head dimension ", dim);
  if (num_tokens == 0 || k == 0) return;
  // The number of tokens whose scores are in memory at once: enough for one block per multiprocessor with two splits of
  // the rows.
  const int64_t room = ctx.scratch.bytes / (4 * kMaxRows);
  DSV4_CHECK(room >= 1, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t most = std::min({num_tokens, room,
                                 std::max<int64_t>(kMaxFew, topk::kTokensPerBlock * ctx.gpu.multiprocessors / 2)}),
                stride = ctx.scratch.bytes / most / 4 / 4 * 4;
  float* scores = reinterpret_cast<float*>(ctx.scratch.data);
  const RowFormat::Kind kind = a.cache.layer->index.row.kind;
  static_assert(topk::kDim == 128 && topk::kMaxHeads == 64 && topk::kWarpKeys == 32, "ScoresOnTensorCores");
  const bool tensor_cores = ScoresOnTensorCores(num_heads, a.cache.layer->index);
  for (int64_t done = 0; done < num_tokens; done += most) {
    const int64_t part = std::min(most, num_tokens - done);
    const topk::Keys keys{a.cache.sequences, a.cache.sequence_of + done, a.cache.positions + done,
                          a.cache.layer->index};
    const float* q = a.q.f32() + done * num_heads * dim;
    const float* weights = a.weights.f32() + done * num_heads;
    if (tensor_cores) {
      const auto launch = kind == RowFormat::Kind::kFp4 ? LaunchScores<true> : LaunchScores<false>;
      launch(ctx, q, weights, keys, scores, stride, num_heads, k, part, a.cache.num_sequences == 1);
    } else {
      Launch(ctx, topk::PlainScoreKernel, dim3(Dim(CeilDiv(8 * ctx.gpu.multiprocessors, part)), Dim(part)),
             dim3(topk::kPlainThreads), topk::PlainSharedBytes(dim), q, weights, keys, scores, stride, num_heads, dim,
             k);
    }
    LaunchSelect(ctx, scores, stride, keys, k, part, a.topk_idxs.i32() + done * k);
  }
}

}  // namespace dsv4
