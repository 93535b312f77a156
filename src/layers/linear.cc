#include "layers/linear.h"

#include "ops/linear/block_scaled.h"
#include "ops/linear/linear.h"
#include "ops/linears/linears.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/round_activation/round_activation.h"

namespace dsv4 {

namespace {

// Codes of inputs and weights multiplied as they are: Blackwell only (ops/linear/block_scaled.h; never executed yet).
bool MultipliesCodes(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const QuantTensor& w) {
  return mode == ActivationDtype::kNvfp4 && BlockScaledLinearSupports(ctx, x, w);
}

}  // namespace

void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const LinearInput& in, const QuantTensor& w, const Tensor& y,
                 const Tensor& scratch) {
  const Tensor& x = in.x;
  if (MultipliesCodes(ctx, mode, x, w)) {
    BlockScaledLinear(ctx, {.x = x, .w = w, .y = y});
    return;
  }
  Tensor input = x;
  if (RoundsInput(mode, w) && !IsInteger(mode)) {
    DSV4_CHECK(scratch.num_elements() >= x.num_elements());
    input = {scratch.data, DType::kF32, x.shape};
    RoundActivation(ctx, {.x = x, .y = input, .mode = mode});
  }
  const bool takes = in.blocks != nullptr && ReadsBlocks(ctx, mode, w);
  Linear(ctx, {.x = input, .w = w, .y = y, .activation = mode, .x_blocks = takes ? in.blocks : nullptr});
}

void QuantLinears(const ExecContext& ctx, ActivationDtype mode, const LinearInput& in, std::initializer_list<LinearCall> calls,
                  const Tensor& scratch) {
  const Tensor& x = in.x;
  LinearsArgs plain{.x = x, .x_blocks = in.blocks}, rounded{.x = {scratch.data, DType::kF32, x.shape}};
  const bool to_integers = IsInteger(mode);  // linears rounds by itself
  if (to_integers) rounded = {.x = x, .activation = mode};
  for (const LinearCall& call : calls) {
    if (!call.w) continue;
    if (call.rounds && MultipliesCodes(ctx, mode, x, call.w)) {
      BlockScaledLinear(ctx, {.x = x, .w = call.w, .y = call.y});
      continue;
    }
    LinearsArgs& group = call.rounds && RoundsInput(mode, call.w) ? rounded : plain;
    group.parts[static_cast<size_t>(group.count++)] = {call.w, call.y, call.queries};
  }
  if (plain.count > 0) Linears(ctx, plain);
  if (rounded.count == 0) return;
  if (!to_integers) {
    DSV4_CHECK(scratch.num_elements() >= x.num_elements());
    RoundActivation(ctx, {.x = x, .y = rounded.x, .mode = mode});
  }
  Linears(ctx, rounded);
}

void NormedQuantLinears(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const Tensor& norm, float norm_eps,
                        std::initializer_list<LinearCall> calls, const Tensor& scratch) {
  LinearsArgs args{.x = x, .norm = norm, .norm_eps = norm_eps};
  bool rounds = false;
  for (const LinearCall& call : calls) {
    if (!call.w) continue;
    rounds = rounds || (call.rounds && (RoundsInput(mode, call.w) || MultipliesCodes(ctx, mode, x, call.w)));
    args.parts[static_cast<size_t>(args.count++)] = {call.w, call.y, call.queries};
  }
  if (!rounds && args.count > 0 && LinearsNormalise(ctx, args)) {
    Linears(ctx, args);
    return;
  }
  RmsNorm(ctx, {.x = x, .weight = norm, .y = x, .eps = norm_eps});
  QuantLinears(ctx, mode, x, calls, scratch);
}

}  // namespace dsv4
