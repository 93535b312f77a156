#include <algorithm>

#include "device/launch.cuh"
#include "ops/step_before/step_before.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kStepBeforeThreads = 128;

// The next kernel must not start early: it reads the step before it waits.
__global__ void __launch_bounds__(kStepBeforeThreads)
    StepBeforeKernel(const int64_t* positions, int64_t* positions_before, const SequenceView* sequences,
                     SequenceView* before, int64_t num_tokens, int64_t num_sequences) {
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kStepBeforeThreads + threadIdx.x;
  if (i < num_tokens) positions_before[i] = positions[i] > 0 ? positions[i] - 1 : 0;
  if (i >= num_sequences) return;
  SequenceView seq = sequences[i];
  if (seq.start > 0) {
    --seq.start;
  } else {
    ++seq.begin;
  }
  before[i] = seq;
}

}  // namespace

void StepBeforeCuda(const ExecContext& ctx, const StepBeforeArgs& a) {
  const int64_t t = a.positions.dim(0), most = std::max(t, a.num_sequences);
  if (most == 0) return;
  Launch(ctx, StepBeforeKernel, dim3(static_cast<unsigned>(CeilDiv(most, kStepBeforeThreads))),
         dim3(kStepBeforeThreads), 0, a.positions.i64(), a.positions_before.i64(), a.sequences, a.before, t,
         a.num_sequences);
}

}  // namespace dsv4
