#include "layers/linear.h"

#include "ops/linear/block_scaled.h"
#include "ops/linear/linear.h"
#include "ops/linears/linears.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/round_activation/round_activation.h"

namespace dsv4 {

Input InputOf(const ExecContext& ctx, ActivationDtype mode, const QuantTensor& w) {
  if (!RoundsInput(mode, w)) return Input::kAsIs;
  return mode == ActivationDtype::kNvfp4 && BlockScaledLinearTakes(ctx, w) ? Input::kCodes : Input::kRounded;
}

void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const Activation& x, const QuantTensor& w, Input input, const Tensor& y,
                 const Room& scratch) {
  if (input == Input::kCodes && BlockScaledLinear(ctx, {.x = x.x, .w = w, .y = y})) return;
  Tensor taken = x.x;
  if (input != Input::kAsIs && !IsInteger(mode)) {  // linear rounds to integers by itself
    taken = scratch.Floats(x.x.dim(0), x.x.dim(1));
    RoundActivation(ctx, {.x = x.x, .y = taken, .mode = mode});
  }
  Linear(ctx, {.x = taken, .w = w, .y = y, .activation = mode, .x_blocks = input == Input::kAsIs ? x.blocks : nullptr});
}

void QuantLinears(const ExecContext& ctx, ActivationDtype mode, const Activation& x, std::initializer_list<LinearCall> calls, const Room& scratch) {
  LinearsArgs plain{.x = x.x, .x_blocks = x.blocks}, rounded;
  for (const LinearCall& call : calls) {
    if (!call.w) continue;
    if (call.input == Input::kCodes && BlockScaledLinear(ctx, {.x = x.x, .w = call.w, .y = call.y})) continue;
    LinearsArgs& group = call.input == Input::kAsIs ? plain : rounded;
    group.parts[static_cast<size_t>(group.count++)] = {call.w, call.y, call.queries};
  }
  if (plain.count > 0) Linears(ctx, plain);
  if (rounded.count == 0) return;
  if (IsInteger(mode)) {  // linears rounds by itself
    rounded.x = x.x, rounded.activation = mode;
  } else {
    rounded.x = scratch.Floats(x.x.dim(0), x.x.dim(1));
    RoundActivation(ctx, {.x = x.x, .y = rounded.x, .mode = mode});
  }
  Linears(ctx, rounded);
}

void NormedQuantLinears(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const Tensor& norm, float norm_eps, bool along,
                        std::initializer_list<LinearCall> calls, const Room& scratch) {
  if (!along) {
    RmsNorm(ctx, {.x = x, .weight = norm, .y = x, .eps = norm_eps});
    return QuantLinears(ctx, mode, x, calls, scratch);
  }
  LinearsArgs args{.x = x, .norm = norm, .norm_eps = norm_eps};
  for (const LinearCall& call : calls) {
    if (call.w) args.parts[static_cast<size_t>(args.count++)] = {call.w, call.y, call.queries};
  }
  Linears(ctx, args);
}

}  // namespace dsv4
