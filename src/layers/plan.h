// What a layer does in a step, decided once for each layer and class of steps: which ops are one launch, and in which
// form a value lies between two ops. Host code, a function of the context (a GPU may be described and not be there), of
// formats and of shapes.
#pragma once

#include <array>
#include <cstdint>

#include "device/exec_context.h"
#include "kv/layout.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/hyper_connection.h"
#include "layers/linear.h"
#include "layers/moe.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

// Steps that are planned alike. The regime decides a row's bits; within kDecode, few rows save launches and change no
// bit.
enum class StepClass : uint8_t { kOneRow, kFewRows, kDecode, kPrompt, kLongPrompt };
inline constexpr std::array kStepClasses = {StepClass::kOneRow, StepClass::kFewRows, StepClass::kDecode,
                                            StepClass::kPrompt, StepClass::kLongPrompt};
StepClass ClassOf(Regime regime, int64_t num_tokens);
Regime RegimeOf(StepClass step);
int64_t LeastRows(StepClass step), MostRows(StepClass step);  // of a step

struct AttentionPlan {
  Form x = Form::kFloats;  // or kFloatsAndBlocks
  Input q_a = Input::kAsIs, kv_proj = Input::kAsIs, index_weights = Input::kAsIs, q_b = Input::kAsIs,
        index_q_b = Input::kAsIs;
  bool norms_along = false;      // q_a_norm is taken by q_b's launch
  bool expands = false;          // q_b, the indexer's q_b and q_prepare are one launch, of one sequence's rows
  Form queries = Form::kFloats;  // or kQueries
  Form heads = Form::kFloats;    // or kBlocks
  bool rounds_heads = false;     // o_a's input is rounded, group by group
  Form o_lora = Form::kFloats;   // or kBlocks
  Input o_b = Input::kAsIs;
  // A rank takes its own tokens and all heads, not all tokens and its own heads; what makes keys is gathered.
  bool by_tokens = false;
  bool sliced = false;       // from q_b on slice by slice, each as if it were a rank's
  Form out = Form::kFloats;  // or kRankParts, kRankRows, kPartsForBridge, kPushedForBridge
};

struct MoePlan {
  Form x = Form::kFloats;          // or kFloatsAndBlocks
  bool shared_is_routed = false;   // the shared expert is one of those that the experts' launch takes
  bool router_multiplies = false;  // the router makes its logits
  Input gate = Input::kAsIs, up = Input::kAsIs, down = Input::kAsIs;  // of the shared expert
  Form hidden = Form::kFloats;                                        // or kBlocks: of the shared expert
  bool experts_read_blocks = false;
  int64_t fetch_from = 0;  // choices of a pass from which experts of the host are fetched, not read there; 0: never
  // A rank routes its own tokens; then x is gathered, as floats or blocks, with the choices.
  bool by_tokens = false;
  Form gathered = Form::kFloats;  // or kBlocks
  bool sliced = false;            // experts slice by slice, each as if it were a rank's
  // kSlots: the next bridge adds them up; of ranks kRankParts or kRowParts, or what it adds up
  Form out = Form::kFloats;
};

struct LayerPlan {
  AttentionPlan attention;
  MoePlan moe;
};
using LayerPlans = std::array<LayerPlan, kStepClasses.size()>;  // by StepClass

// What a plan is made of besides the context: a layer's weights (their formats and shapes; the bytes need not be there)
// and sizes.
struct LayerShape {
  const AttentionWeights* attention = nullptr;
  const MoeWeights* moe = nullptr;
  AttentionSettings settings;
  LayerLayout cache;
  int64_t window = 0, rope_dim = 0;  // W, Dr
  int64_t streams = 0, dim = 0;      // H, D
  QuantTensor mixes;                 // fn of its bridges
  int64_t experts_per_token = 0;     // A
  bool is_last = false;              // no bridge follows
  int num_cuts = 1;                  // parts that heads and width are cut in, one of which the weights are
  bool rank_invariant = false;       // a rank may have several of them, and no bit depends on how many
};

// `ctx` with the regime of the class.
ExecContext ContextOf(const ExecContext& ctx, StepClass step);
LayerPlan PlanLayer(const ExecContext& ctx, StepClass step, const LayerShape& layer);
LayerPlans PlanLayer(const ExecContext& ctx, const LayerShape& layer);
// The same where somebody looks at the streams behind every layer: the next bridge adds nothing up.
LayerPlan Observed(const LayerPlan& plan);

// The layer as `plan` has a rank take it: where that is by tokens, with all heads, which `all` holds.
LayerShape ShapeFor(const AttentionPlan& plan, const LayerShape& layer, AttentionWeights* all);

// What capabilities ask of a layer.
AttentionShape AttentionShapeOf(const LayerShape& layer);
ExpandShape ExpandShapeOf(const LayerShape& layer, int64_t num_tokens);
// Whether the shared expert looks like the routed ones.
bool SharedLooksRouted(const MoeWeights& w);

}  // namespace dsv4
