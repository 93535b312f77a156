#include "layers/linear.h"

#include "ops/linear/block_scaled/block_scaled.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/round_activation/round_activation.h"

namespace dsv4 {

Input InputOf(const ExecContext& ctx, ActivationDtype mode, const QuantTensor& w) {
  if (!RoundsInput(mode, w)) return Input::kAsIs;
  return mode == ActivationDtype::kNvfp4 && BlockScaledLinearTakes(ctx, w) ? Input::kCodes : Input::kRounded;
}

void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const Activation& x,
                 std::initializer_list<LinearCall> calls, const Room& scratch) {
  LinearArgs plain, rounded;  // assigned to, see LinearParts
  plain.x = x.x, plain.x_blocks = x.blocks;
  for (const LinearCall& call : calls) {
    if (!call.w) continue;
    if (call.input == Input::kCodes && BlockScaledLinear(ctx, x.x, call.w, call.y)) continue;
    (call.input == Input::kAsIs ? plain : rounded)
        .parts.Add({.w = call.w, .y = call.y, .queries = call.queries, .push_site = call.push_site});
  }
  if (!plain.parts.empty()) Linear(ctx, plain);
  if (rounded.parts.empty()) return;
  if (IsInteger(mode)) {  // linear rounds by itself
    rounded.x = x.x, rounded.activation = mode;
  } else {
    rounded.x = scratch.Floats(x.x.dim(0), x.x.dim(1));
    RoundActivation(ctx, {.x = x.x, .y = rounded.x, .mode = mode});
  }
  Linear(ctx, rounded);
}

void NormedQuantLinear(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const Tensor& norm,
                       float norm_eps, bool along, std::initializer_list<LinearCall> calls, const Room& scratch) {
  if (!along) {
    RmsNorm(ctx, {.x = x, .weight = norm, .y = x, .eps = norm_eps});
    return QuantLinear(ctx, mode, x, calls, scratch);
  }
  LinearArgs args{.x = x, .norm = norm, .norm_eps = norm_eps};
  for (const LinearCall& call : calls) {
    if (call.w) args.parts.Add({.w = call.w, .y = call.y, .queries = call.queries});
  }
  Linear(ctx, args);
}

}  // namespace dsv4
