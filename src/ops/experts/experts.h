// The routed experts (docs/dev/model.md):
//   for each token t and choice a, e = experts[t, a]:
//     h = Swiglu(gate_e x, up_e x, limit) * weights[t, a]     the routing weight comes before the down projection ...
//     o[t, a] = down_e Round(h)                               ... and before the rounding of its input
//   y[t] = shared[t] + sum_a o[t, a], a in order
//   o[t, a] = 0 if e is kNoExpert (ops/idle_row.h): allowed in steps of decode rows with T > 1, and on a CPU
// `activation` rounds x and h as RoundActivation does if the expert's matrix is quantised (integers: NVFP4 or MXFP4).
// Sums are float32. A token's bits do not depend on the other tokens.
#pragma once

#include <span>

#include "dsv4/types.h"
#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxExpertsOnGpu = 1024, kMaxTokensOnGpu = 65535;  // in `matrices`; T

struct ExpertMatrices {
  QuantTensor gate;  // [F, D]
  QuantTensor up;    // [F, D]
  QuantTensor down;  // [D, F]
};

// Experts that are copied to the device's memory in groups while other groups are multiplied. First come gate and up of
// every group, then down of every group. Each expert is in one group.
class ExpertFetch {
 public:
  virtual ~ExpertFetch() = default;
  // Work that is queued after this call finds the group's matrices (gate and up, or down) at the addresses in
  // FetchedExperts.
  virtual void Await(bool up, int group) = 0;
  // The caller has queued the work that reads the matrices of the last Await. Other matrices may replace them after
  // that work.
  virtual void Done() = 0;
};
inline constexpr int kMaxFetchGroups = 128;
struct FetchedExperts {
  ExpertFetch* fetch = nullptr;
  std::span<const ExpertMatrices> matrices;  // [E], in the device's memory
  const int32_t* group_of = nullptr;         // [E], in the device's memory; in [0, num_groups)
  int num_groups = 1;
};

struct ExpertsArgs {
  Tensor x;                                  // f32 [T, D]
  Tensor experts;                            // i32 [T, A]
  Tensor weights;                            // f32 [T, A]
  std::span<const ExpertMatrices> matrices;  // [E], in the device's memory
  // on a device: the host's copy of matrices[0]; all experts have its shapes and formats (ExpertsTake)
  ExpertMatrices first;
  float limit = 0;
  ActivationDtype activation = ActivationDtype::kNative;
  Tensor hidden;     // f32 [T*A, 2F]: scratch; on a device 16-byte aligned
  Tensor outputs;    // f32 [T*A, D]: scratch; on a device 16-byte aligned
  Tensor rounded_x;  // f32 [T, D]: scratch; only if `activation` rounds
  Tensor shared;     // f32 [T, D]; may be y; on a device it may be empty, which means zeros
  // f32 [T, D]. On a device it may be empty if `shared` is empty: then `outputs` are o[t, a], and the op does not add
  // them.
  Tensor y;
  int32_t always = -1;  // the expert that every token has as choice 0 (RouterArgs::always), if known
  const FetchedExperts* fetched = nullptr;  // replaces `matrices`; only if ExpertsRunAsPrompt; needs `shared`
  // x as FP16 in blocks (ops/activation_blocks.cuh), or null. The op reads it instead of x if it would round x to that
  // form (ExpertsReadBlocks), except if it runs the rows in parts.
  const uint8_t* x_blocks = nullptr;
  // Only if ExpertsSumRanks: y is a rank's partial. The rank's own rows (ops/rank_rows.h) of y become the sums, added
  // as in sum_ranks, in the pass's collective `site`. The other rows of y are then unspecified.
  bool sums_ranks = false;
  int64_t site = 0;
};
void Experts(const ExecContext& ctx, const ExpertsArgs& args);

// Whether the op adds the ranks' partials of y: between GPUs, for prompts whose rows travel in one collective. The
// kernels send the partials while they compute them.
bool ExpertsSumRanks(const ExecContext& ctx, const ExpertsArgs& args);

// Whether the kernels of decode rows accept an expert of format `other` among experts of `format`. The kernels of
// prompts accept one format.
bool ExpertsTake(WeightFormat format, WeightFormat other);

// Whether a GPU uses the kernels of prompts for experts like `first`, without the shared expert among them. A function
// of the regime and the weights, never of T.
bool ExpertsRunAsPrompt(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                        int64_t num_experts);
// The terms of an input in those kernels.
int GpuExpertsInputNumbers(const ExecContext& ctx, const ExpertMatrices& first);
// Whether those kernels read x_blocks instead of x.
bool ExpertsReadBlocks(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                       int64_t num_experts);

// The properties of a call that, with the number of rows, determine how much of ExecContext::scratch it needs.
struct ExpertsShape {
  ExpertMatrices first;                // as in ExpertsArgs
  int64_t num_experts = 0, slots = 0;  // E, A
  ActivationDtype activation = ActivationDtype::kNative;
  bool with_shared = false;  // the shared expert is among the experts; `shared` is empty
};
ExpertsShape ShapeOf(const ExpertsArgs& args);
// Bytes of scratch that a GPU's kernels need for `rows` rows at once.
int64_t ExpertsScratchBytes(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
// Returns how many of `rows` rows the kernels process at once: all, if they fit in the scratch memory of `ctx`.
// Otherwise the size of equal parts, which Experts runs one after the other; 0 if not even one row fits. A row's bits
// are the same in any part.
int64_t ExpertsRowsAtOnce(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

// Names the kernels for `rows` rows on this device, and the terms of an input.
std::string ExpertsImplementation(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
OpImplementations DescribeExperts(const ExecContext& ctx);
OpWork WorkOf(const ExpertsArgs& args);

}  // namespace dsv4
