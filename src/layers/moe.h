// Mixture of experts (docs/dev/model.md): router, routed experts, shared expert.
#pragma once

#include <vector>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "layers/activation.h"
#include "ops/experts/experts.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct MoePlan;  // plan.h

using ExpertWeights = ExpertMatrices;  // official: gate = w1, up = w3, down = w2

// A slice of every expert's width.
struct ExpertSlice {
  std::vector<ExpertWeights> experts;    // [E]
  const ExpertWeights* table = nullptr;  // as MoeWeights'
  ExpertWeights shared;
};

// Brings experts that have no place of their own into the device's memory (docs/offload.md). The host waits for the
// choice, so passes that need it are not recorded.
class ExpertSupply {
 public:
  virtual ~ExpertSupply() = default;
  // chosen i32 [T, slots], in the device's memory: work that is queued from now on finds them where tables say.
  virtual void Bring(const ExecContext& ctx, const Tensor& chosen) = 0;
};

struct MoeSettings {
  float scaling_factor = 1;  // routed_scaling_factor
  float limit = 0;           // swiglu_limit
  ActivationDtype activation = ActivationDtype::kNative;
};

// Computes chosen experts elsewhere, beside the device (docs/offload.md). The host waits for the choice here, too.
class ExpertPartner {
 public:
  virtual ~ExpertPartner() = default;
  struct Left {
    Tensor experts, weights;  // i32, f32 [T, slots], as ExpertsArgs'; no slots: nothing is left
  };
  // x f32 [T, D], chosen i32 and weights f32 [T, slots], all in the device's memory. False: takes none of this pass.
  // Else *left is what the device has to compute, good for the work that is queued before the next call.
  virtual bool Take(const ExecContext& ctx, const Tensor& x, const Tensor& chosen, const Tensor& weights,
                    Left* left) = 0;
  // Behind Take, with the device's part queued: what was taken, a sum for each row, to `sums` f32 [T, D] in the
  // device's memory, for the work that is queued from now on.
  virtual void Compute(const ExecContext& ctx, const MoeSettings& settings, const Tensor& sums) = 0;
};

struct MoeWeights {
  QuantTensor router;                    // [E, D]   official: gate.weight
  Tensor router_bias;                    // f32 [E]: for the choice only; empty in hash layers
  Tensor hash_table;                     // i32 [V, A]: expert ids by token; empty in learned layers
  std::vector<ExpertWeights> experts;    // [E]
  const ExpertWeights* table = nullptr;  // the same array in the device's memory, `shared` behind it; null: on the host
  ExpertWeights shared;
  const FetchedExperts* fetched = nullptr;  // for prompts, where some experts lie in the host's memory; or null
  ExpertSupply* supply = nullptr;           // where some experts have no place of their own; or null
  ExpertPartner* partner = nullptr;         // of a whole model's experts, where some are computed elsewhere; or null
  // Of a rank whose experts come in slices that are summed one by one (MoePlan::sliced): each, of which the first is
  // above, too; else empty.
  std::vector<ExpertSlice> slices;
};

// Intermediates, by their stable names. Every buffer holds T rows.
struct MoeBuffers {
  // a linear's rounded input, of D or F columns; or x as blocks, and behind it the shared expert's hidden ones
  Room rounded;
  Tensor router_logits;    // f32 [T, E]
  Tensor expert_ids;       // i32 [T, 1 + A]: room for the shared expert
  Tensor routing_weights;  // f32 [T, 1 + A]
  Tensor shared_gate;      // f32 [T, F]
  Tensor shared_up;        // f32 [T, F]
  Tensor hidden;           // f32 [T*(1 + A), 2F]
  Tensor outputs;          // f32 [T*(1 + A), D]
  Tensor sums;             // f32 [levels, T, D]: of slices (slices.h); else empty
};

// Whether tokens that choose `num_choices` experts together need most of them: then those of the host are brought to
// the device in bulk copies, in less than half the time of kernels that read them there.
bool FetchesExperts(const MoePlan& plan, const MoeWeights& w, int64_t num_choices);

// y [T, D] = shared expert(x) + sum of the routed experts' outputs; tokens i32 [T] for the hash layers. Returns it in
// the plan's form: y, or, where the next bridge adds them up, the outputs of the slots (Form::kSlots, kSlotsForBridge).
// Where the plan is by tokens, x has the rank's own rows (ops/rank_rows.h), its blocks these alone and elsewhere than
// in `buffers`; the others' rows and choices are gathered, from the pass's exchange `site` on.
Activation Moe(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& settings,
               const Tensor& tokens, const Activation& x, MoeBuffers& buffers, const Tensor& y, int64_t* site);

}  // namespace dsv4
