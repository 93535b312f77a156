#include "ops/window_append/window_append.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void WindowAppendRef(const ExecContext& ctx, const WindowAppendArgs& a);
void WindowAppendCuda(const ExecContext& ctx, const WindowAppendArgs& a);

namespace {

constexpr Candidate<WindowAppendArgs> kWindowAppendCandidates[] = {
    DSV4_CUDA_ROW(WindowAppendCuda, "WindowAppendKernel"){"ref", SupportsCpu, WindowAppendRef},
};

}  // namespace

void WindowAppend(const ExecContext& ctx, const WindowAppendArgs& a) {
  DSV4_CHECK_EQ(a.kv.dim(0), a.cache.num_tokens);
  DSV4_CHECK_EQ(a.kv.dim(1), a.cache.layer->window_row.dim);
  RunOp("window_append", kWindowAppendCandidates, ctx, a);
}

OpImplementations DescribeWindowAppend(const ExecContext& ctx) {
  return DescribeOp("window_append", kWindowAppendCandidates, ctx);
}

}  // namespace dsv4
