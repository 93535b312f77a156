#include "device/launch.cuh"
#include "ops/advance/advance.h"
#include "ops/idle_row.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kAdvanceThreads = 128;

// The next kernel must not start early: it reads the step before it waits.
__global__ void __launch_bounds__(kAdvanceThreads)
    AdvanceKernel(const int32_t* sampled, int32_t* tokens, int64_t* positions, SequenceView* sequences,
                  int32_t* history, int32_t* counts, int64_t num_sequences, int64_t capacity) {
  WaitForPrevious();
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kAdvanceThreads + threadIdx.x;
  if (s >= num_sequences || tokens[s] == kIdleToken) return;
  const int32_t id = sampled[s];
  tokens[s] = id;
  ++positions[s];
  ++sequences[s].start;
  if (history == nullptr) return;
  const int32_t count = counts[s];
  if (count < capacity) history[s * capacity + count] = id;
  counts[s] = count + 1;
}

}  // namespace

void AdvanceCuda(const ExecContext& ctx, const AdvanceArgs& a) {
  const int64_t s = a.sampled.dim(0);
  Launch(ctx, AdvanceKernel, dim3(static_cast<unsigned>(CeilDiv(s, kAdvanceThreads))), dim3(kAdvanceThreads), 0,
         a.sampled.i32(), a.tokens.i32(), a.positions.i64(), a.sequences, a.history ? a.history.i32() : nullptr,
         a.history ? a.counts.i32() : nullptr, s, a.history ? a.history.dim(1) : 0);
}

}  // namespace dsv4
