#include "ops/experts/expert_forms.h"

#include <algorithm>

#include "base/str.h"

namespace dsv4::experts {

namespace {

constexpr int64_t kMaxDirectColumns = 8192;  // columns of a row in a block's shared memory

bool Rounds(ActivationDtype mode, const QuantTensor& w) {
  return w.quantised() && (mode == ActivationDtype::kFp8 || mode == ActivationDtype::kNvfp4);
}

bool FewFit(const QuantTensor& w, bool up, int64_t rows, int64_t slots) {
  return InfoOf(w.format).packed() &&
         (FewTokensFit<4>(up, w.cols, w.rows, rows, slots) || FewTokensFit<2>(up, w.cols, w.rows, rows, slots));
}

bool ManyFit(const QuantTensor& w, bool up) {
  const int tiles = ManyTiles(w.cols);
  if (!InfoOf(w.format).packed() || w.cols % (64 * kWarps) != 0) return false;
  return up ? tiles == 8 && w.rows % 16 == 0
            : (tiles == 4 || tiles == 2 || tiles == 1) && w.rows % (32 * 4 / tiles) == 0;
}

bool ManySegmentsFit(int64_t max_chunks, int multiprocessors) {
  return 2 * max_chunks / multiprocessors + 3 <= kManySegments;
}

const char* KernelOf(const ExecContext& ctx, const ExpertsShape& s, const DecodeForm& form, bool up) {
  const QuantTensor& w = up ? s.first.gate : s.first.down;
  if (w.format == WeightFormat::kF32) return up ? "F32UpKernel" : "F32DownKernel";
  if (form.few) return "ExpertFewKernel";
  if (form.many) return "ExpertManyKernel";
  const bool one = form.direct && !form.wide && !(up && form.hidden_f32) && InfoOf(w.format).packed() &&
                   OneTokenFits(ctx, up, w.cols, w.rows, s.slots);
  return one ? "ExpertOneKernel" : "ExpertGemmKernel";
}

}  // namespace

DecodeForm DecodeFormOf(const ExecContext& ctx, const ExpertsShape& s, int64_t rows, bool x_is_aligned) {
  const QuantTensor &up = s.first.gate, &down = s.first.down;
  const int64_t pairs = rows * s.slots;
  const bool pair = !ctx.f32_inputs;  // inputs have two BF16 terms
  DecodeForm form = {.round_x = Rounds(s.activation, up), .round_hidden = Rounds(s.activation, down)};
  form.hidden_f32 = form.round_hidden || up.format == WeightFormat::kF32 || down.format == WeightFormat::kF32;
  form.direct = rows == 1 && pair && !form.round_x && up.cols <= kMaxDirectColumns;
  form.few = rows > 1 && rows <= kFewTokens && pairs <= kFewPairs && pair && !form.round_x && !form.hidden_f32 &&
             x_is_aligned && FewFit(up, true, rows, s.slots) && FewFit(down, false, rows, s.slots);
  // With few tokens per expert one block of columns is faster. An expert with more tokens is then read again for the
  // rest.
  form.wide = !pair || pairs > 2 * s.num_experts;
  form.many = !form.direct && !form.few && pair && !form.hidden_f32 && ManyFit(up, true) && ManyFit(down, false) &&
              ManySegmentsFit(std::min(pairs, s.num_experts + pairs / kManyChunk), ctx.gpu.multiprocessors);
  return form;
}

bool OneTokenFits(const ExecContext& ctx, bool up, int64_t k, int64_t n, int64_t slots) {
  const int64_t items = slots * CeilDiv(n, up ? 16 : 32);
  const int64_t blocks = std::min<int64_t>(ctx.gpu.multiprocessors, CeilDiv(items, 2));
  return items <= kTwoTeamItems * ctx.gpu.multiprocessors && slots <= 32 && k % (kWarps * 128) == 0 &&
         k <= kWarps * kOneMaxTiles * 64 && n % 64 == 0 && CeilDiv(items, blocks) <= 2 * kOneItems;
}

std::string DecodeKernels(const ExecContext& ctx, const ExpertsShape& s, int64_t rows) {
  const DecodeForm form = DecodeFormOf(ctx, s, rows, /*x_is_aligned=*/true);
  const std::string up = KernelOf(ctx, s, form, true), down = KernelOf(ctx, s, form, false);
  return up == down ? up : StrCat(up, ", ", down);
}

}  // namespace dsv4::experts
