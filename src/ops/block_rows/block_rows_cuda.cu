#include "device/launch.cuh"
#include "ops/block_rows/block_rows.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kBlockRowsThreads = 128;

struct BlockArrays {
  int32_t* tokens;
  int64_t *positions, *last;
  int32_t *sequence_of, *by_place;
  SequenceView* blocks;
};

// The next kernel must not start early: it reads the step before it waits.
__global__ void __launch_bounds__(kBlockRowsThreads)
    BlockRowsKernel(const int32_t* tokens, const int64_t* positions, const SequenceView* sequences, BlockArrays out,
                    int64_t num_sequences, int64_t block, int32_t filler) {
  WaitForPrevious();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBlockRowsThreads + threadIdx.x, s = row / block,
                i = row % block;
  if (s >= num_sequences) return;
  const int64_t position = positions[s];
  out.tokens[row] = i == 0 ? tokens[s] : filler;
  out.positions[row] = position + i;
  out.last[row] = position + block - 1;
  out.sequence_of[row] = static_cast<int32_t>(s);
  out.by_place[i * num_sequences + s] = static_cast<int32_t>(row);
  if (i != 0) return;
  SequenceView seq = sequences[s];
  seq.start = position, seq.begin = row, seq.end = row + block;
  out.blocks[s] = seq;
}

}  // namespace

void BlockRowsCuda(const ExecContext& ctx, const BlockRowsArgs& a) {
  const int64_t s = a.step_tokens.dim(0);
  if (s == 0) return;
  const BlockArrays out{.tokens = a.tokens.i32(),
                        .positions = a.positions.i64(),
                        .last = a.last.i64(),
                        .sequence_of = a.sequence_of.i32(),
                        .by_place = a.by_place.i32(),
                        .blocks = a.blocks};
  Launch(ctx, BlockRowsKernel, dim3(static_cast<unsigned>(CeilDiv(s * a.block, kBlockRowsThreads))),
         dim3(kBlockRowsThreads), 0, a.step_tokens.i32(), a.step_positions.i64(), a.sequences, out, s, a.block,
         a.filler);
}

}  // namespace dsv4
