// The routed experts (docs/dev/model.md):
//   for each token t and slot a, e = experts[t, a]:
//     h = Swiglu(gate_e x, up_e x, limit) * weights[t, a]     the routing weight comes before the down projection ...
//     o[t, a] = down_e Round(h)                               ... and before the rounding of its input
//   y[t] = shared[t] + sum_a o[t, a], a in order
// `activation` rounds x and h as RoundActivation does when the expert's matrix is quantised (integers: NVFP4 or MXFP4).
//   o[t, a] = 0 where e is kNoExpert (ops/idle_row.h): in steps of decode rows with T > 1, and on a CPU
// float32 sums; a token's bits do not depend on the other tokens.
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

// Experts that are brought into the device's memory group by group while others are multiplied: of a group first gate
// and up, then, when all groups' are done, down. Each group has a part of the experts, together they have all.
class ExpertFetch {
 public:
  virtual ~ExpertFetch() = default;
  // Work that is queued from now on finds a group's matrices (gate and up, or down) where FetchedExperts says.
  virtual void Await(bool up, int group) = 0;
  // The work that reads what was awaited last has been queued: other matrices may take its place behind that.
  virtual void Done() = 0;
};
inline constexpr int kMaxFetchGroups = 128;
struct FetchedExperts {
  ExpertFetch* fetch = nullptr;
  std::span<const ExpertMatrices> matrices;  // [E], in the device's memory
  const int32_t* group_of = nullptr;         // [E], likewise: in [0, num_groups)
  int num_groups = 1;
};

struct ExpertsArgs {
  Tensor x;                                  // f32 [T, D]
  Tensor experts;                            // i32 [T, A]
  Tensor weights;                            // f32 [T, A]
  std::span<const ExpertMatrices> matrices;  // [E], in the device's memory
  // on a device: the host's copy of matrices[0]; there all experts have its shapes and formats (ExpertsTake)
  ExpertMatrices first;
  float limit = 0;
  ActivationDtype activation = ActivationDtype::kNative;
  Tensor hidden;     // f32 [T*A, 2F]: scratch; on a device 16-byte aligned
  Tensor outputs;    // f32 [T*A, D]: likewise
  Tensor rounded_x;  // f32 [T, D]: scratch; only when `activation` rounds
  Tensor shared;     // f32 [T, D]; may be y; on a device it may be empty: zeros
  // f32 [T, D]; on a device it may be empty, without `shared`: then `outputs` are o[t, a], and nobody adds them up
  Tensor y;
  int32_t always = -1;  // the expert that every token has in slot 0 (RouterArgs::always), where that is known
  const FetchedExperts* fetched = nullptr;  // instead of `matrices`; only where ExpertsRunAsPrompt, with `shared`
  // x as FP16 in blocks (ops/activation_blocks.cuh), or null; read instead where x would be rounded to that, unless
  // the rows are run in parts.
  const uint8_t* x_blocks = nullptr;
  // Where ExpertsSumRanks: y is a rank's part, and its own rows (ops/rank_rows.h) become the sums, as sum_ranks adds,
  // in the pass's exchange `site`; y's other rows hold anything then.
  bool sums_ranks = false;
  int64_t site = 0;
};
void Experts(const ExecContext& ctx, const ExpertsArgs& args);

// Whether ranks' parts of y are added up here: between GPUs, of prompts whose rows travel in one exchange. They are
// sent as they are made.
bool ExpertsSumRanks(const ExecContext& ctx, const ExpertsArgs& args);

// Whether kernels of decode rows take an expert of format `other` among those of `format`; those of prompts take one
// format.
bool ExpertsTake(WeightFormat format, WeightFormat other);

// Whether a GPU takes the kernels of prompts for experts like `first` that have no shared one among them: a function
// of the regime and the weights, never of T.
bool ExpertsRunAsPrompt(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                        int64_t num_experts);
int GpuExpertsInputNumbers(const ExecContext& ctx, const ExpertMatrices& first);  // that an input is then
// Whether those kernels read x_blocks, and not x.
bool ExpertsReadBlocks(const ExecContext& ctx, const ExpertMatrices& first, ActivationDtype activation,
                       int64_t num_experts);

// What a call's need of ExecContext::scratch follows from, beside the number of rows.
struct ExpertsShape {
  ExpertMatrices first;                // as in ExpertsArgs
  int64_t num_experts = 0, slots = 0;  // E, A
  ActivationDtype activation = ActivationDtype::kNative;
  bool with_shared = false;  // the shared expert is one of them: there is no `shared` to be added to
};
ExpertsShape ShapeOf(const ExpertsArgs& args);
// Bytes that a GPU's kernels take for so many rows at once.
int64_t ExpertsScratchBytes(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
// How many of `rows` rows they take at once: all that the scratch memory of `ctx` holds, else equal parts of them,
// which Experts runs one after the other; 0 where it does not hold a single one. A row's bits are the same in any
// part.
int64_t ExpertsRowsAtOnce(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

// What runs on this device for so many rows, with the numbers that an input is.
std::string ExpertsImplementation(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
OpImplementations DescribeExperts(const ExecContext& ctx);
OpWork WorkOf(const ExpertsArgs& args);

}  // namespace dsv4
