#include "ops/compress/compress.cuh"

namespace dsv4 {

namespace compress {
namespace {

constexpr int kPromptThreads = 256;
static_assert(kMaxRopeDimOnGpu <= 2 * kPromptThreads);
constexpr int kStepThreads = 1024;  // a step emits few rows, so one block must keep many loads in flight

// One block per sequence.
__global__ void __launch_bounds__(kStepThreads) CompressStepKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  const FirstToken<kStepThreads> token(a, static_cast<int>(blockIdx.x));
  WaitForPrevious();
  CompressStep<kStepThreads>(a, token, pooled);
}

// One block per token of the step; only blocks at a boundary emit. Gates of the step are read without their bias, which
// the next kernel adds.
__global__ void __launch_bounds__(kPromptThreads) CompressEmitKernel(const __grid_constant__ Params a) {
  extern __shared__ float pooled[];
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], m = a.c.ratio, width = a.c.overlap * a.c.dim;
  if (gpu::SlotOf(position + 1, m) != 0) return;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const StateSlots kept(a.c, seq, position);
  // slots before this step
  const int old = static_cast<int>(max(int64_t{0}, seq.start - (position + 1 - a.c.overlap * m)));
  const int ratio = static_cast<int>(m);
  const int64_t before = (t + 1 - a.c.overlap * m) * width;
  EmitRow<kPromptThreads>(
      a, seq, position, AngleOfRow(a, position), pooled,
      [&](int slot, int i) {
        if (slot < old) return kept[slot][width + i];
        return __fadd_rn(a.gates[before + slot * width + i],
                         a.slot_bias[(slot < ratio ? slot : slot - ratio) * width + i]);
      },
      [&](int slot, int i) { return slot < old ? kept[slot][i] : a.values[before + slot * width + i]; });
}

// One block per token. Adds the bias to the token's gates, and stores the last tokens of a sequence in its state.
__global__ void __launch_bounds__(kPromptThreads) CompressKeepKernel(const __grid_constant__ Params a) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x, position = a.positions[t], width = a.c.overlap * a.c.dim;
  const SequenceView& seq = a.sequences[a.sequence_of[t]];
  const bool keep = t >= seq.end - a.c.num_slots;
  float* state = gpu::StateRowAt(a.c, seq, position);
  const float* bias = a.slot_bias + gpu::SlotOf(position, a.c.ratio) * width;
  for (int64_t i = threadIdx.x; i < width; i += kPromptThreads) {
    const float gate = __fadd_rn(a.gates[t * width + i], bias[i]);
    a.gates[t * width + i] = gate;
    if (!keep) continue;
    state[i] = a.values[t * width + i];
    state[width + i] = gate;
  }
}

}  // namespace
}  // namespace compress

void CompressCuda(const ExecContext& ctx, const CompressArgs& a) {
  using namespace compress;
  const Params p = MakeParams(a);
  const unsigned t = static_cast<unsigned>(a.cache.num_tokens);
  const size_t shared = static_cast<size_t>(SharedFloats(*a.layout)) * sizeof(float);
  DSV4_CHECK(p.pairs <= kPromptThreads);
  if (a.cache.num_tokens == a.cache.num_sequences) {
    Launch(ctx, CompressStepKernel, dim3(t), dim3(kStepThreads), shared, p);
  } else {
    Launch(ctx, CompressEmitKernel, dim3(t), dim3(kPromptThreads), shared, p);
    Launch(ctx, CompressKeepKernel, dim3(t), dim3(kPromptThreads), 0, p);
  }
}

}  // namespace dsv4
