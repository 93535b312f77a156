#include "ops/sparse_attention/sparse_attention.h"

#include <bit>

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"
#include "ops/rope/rope.h"
#include "ops/sparse_attention/rows.h"

namespace dsv4 {

void SparseAttentionRef(const ExecContext& ctx, const SparseAttentionArgs& a);
void SparseAttentionCuda(const ExecContext& ctx, const SparseAttentionArgs& a);
DSV4_DECLARE_CPU(SparseAttentionCpu, SparseAttentionArgs)

namespace {

constexpr int64_t kTurnedDim = 64;  // Dr of the tensor-core kernels

constexpr Candidate<SparseAttentionArgs> kSparseAttentionCandidates[] = {
    DSV4_CUDA_ROW(SparseAttentionCuda, "AttendKernel, AttendPromptKernel, AttendAnyKernel")
        DSV4_CPU_ROWS(SparseAttentionCpu){"ref", SupportsCpu, SparseAttentionRef},
};

}  // namespace

void SparseAttention(const ExecContext& ctx, const SparseAttentionArgs& a) {
  DSV4_CHECK_EQ(a.q.dim(0), a.cache.num_tokens);
  DSV4_CHECK(a.kv.dim(0) >= a.cache.num_tokens);
  DSV4_CHECK_EQ(a.q.dim(2), a.kv.dim(1));
  DSV4_CHECK_EQ(a.sink.dim(0), a.q.dim(1));
  DSV4_CHECK(a.q.data != a.out.data);
  DSV4_CHECK((a.out_blocks == nullptr && a.queries.blocks == nullptr) || SparseAttentionWritesBlocks(ctx, ShapeOf(a)));
  RunOp("sparse_attention", kSparseAttentionCandidates, ctx, a);
  if (a.cos_sin && ctx.device == DeviceKind::kCpu) Rope(ctx, {.x = a.out, .cos_sin = a.cos_sin, .inverse = true});
}

AttentionShape ShapeOf(const SparseAttentionArgs& a) {
  return {.heads = a.q.dim(1),
          .rope_dim = a.cos_sin ? 2 * a.cos_sin.dim(1) : kTurnedDim,
          .layer = *a.cache.layer,
          .window = a.cache.window};
}

AttentionKernels GpuAttentionKernels(const ExecContext& ctx, const AttentionShape& s) {
  constexpr int64_t kHeadDim = 512, kHeadsOfABlock = 16, kHeadsOfAPromptBlock = 64;
  const auto power_of_2 = [](int64_t x) { return std::has_single_bit(static_cast<uint64_t>(x)); };
  const RowFormat& row = s.layer.window_row;
  const bool format = row.kind == RowFormat::Kind::kBf16 ||
                      (row.kind == RowFormat::Kind::kFp8 && row.rope_dim == kTurnedDim);
  const bool rows = power_of_2(s.window) && (s.layer.main.ratio == 0 || (power_of_2(s.layer.main.ratio) &&
                                                                         power_of_2(s.layer.main.rows_per_page)));
  const bool heads = row.dim == kHeadDim && s.rope_dim == kTurnedDim && s.heads % kHeadsOfABlock == 0;
  if (ctx.f32_inputs || !ctx.gpu.IsHopper() || !heads || !format || !rows) return AttentionKernels::kAny;
  return ctx.regime != Regime::kDecode && s.heads % kHeadsOfAPromptBlock == 0 ? AttentionKernels::kPrompt
                                                                              : AttentionKernels::kTiles;
}

bool SparseAttentionWritesBlocks(const ExecContext& ctx, const AttentionShape& shape) {
  return SupportsCuda(ctx) && GpuAttentionKernels(ctx, shape) == AttentionKernels::kPrompt;
}

std::string SparseAttentionImplementation(const ExecContext& ctx, const AttentionShape& shape) {
  if (!SupportsCuda(ctx)) return Choose(kSparseAttentionCandidates, ctx).name;
  switch (GpuAttentionKernels(ctx, shape)) {
    case AttentionKernels::kAny:
      return "AttendAnyKernel";
    case AttentionKernels::kTiles:
      return "AttendKernel";
    case AttentionKernels::kPrompt:
      return "DecodeRowsKernel, AttendPromptKernel";
  }
  return "";
}

OpImplementations DescribeSparseAttention(const ExecContext& ctx) {
  return DescribeOp("sparse_attention", kSparseAttentionCandidates, ctx);
}

OpWork WorkOf(const SparseAttentionArgs& a) {
  int64_t rows = 0, cached = 0;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    rows += AttendedRows(a, t).size();
    // the last token of a sequence represents the others
    const bool last = t + 1 == a.cache.num_tokens || a.cache.sequence_of[t + 1] != a.cache.sequence_of[t];
    if (last) cached += AttendedRows(a, t).size();
  }
  return {.bytes = static_cast<double>(cached * a.cache.layer->window_row.row_bytes()),
          .products = static_cast<double>(2 * rows * a.q.dim(1) * a.q.dim(2))};
}

}  // namespace dsv4
