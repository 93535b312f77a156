#include "ops/hc_bridge/hc_bridge.h"

#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcBridgeRef(const ExecContext& ctx, const HcBridgeArgs& a);
void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& a);

namespace {

constexpr Candidate<HcBridgeArgs> kHcBridgeCandidates[] = {
    DSV4_CUDA_ROW(HcBridgeCuda){"ref", SupportsCpu, HcBridgeRef},
};

}  // namespace

void HcBridge(const ExecContext& ctx, const HcBridgeArgs& a) {
  const int64_t t = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2);
  DSV4_CHECK(h <= kMaxStreams, "streams ", h);
  DSV4_CHECK(a.fn.rows == (2 + h) * h && a.fn.cols == h * d && !a.fn.quantised());
  DSV4_CHECK(a.base.dim(0) == (2 + h) * h && a.scale.dim(0) == 3 && a.iters >= 1);
  DSV4_CHECK(a.x.dim(0) == t && a.x.dim(1) == d && a.norm.dim(0) == d && a.x.data != a.y.data);
  const bool slots = a.y && a.y.shape.rank() == 3;
  DSV4_CHECK(!a.y || (a.y.dim(0) == t && a.y.dim(slots ? 2 : 1) == d));
  DSV4_CHECK(!slots || HcBridgeAddsSlots(ctx, a));
  DSV4_CHECK(a.post.num_elements() == t * h && a.comb.num_elements() == t * h * h);
  DSV4_CHECK(a.x_blocks == nullptr || HcBridgeWritesBlocks(ctx, a));
  RunOp("hc_bridge", kHcBridgeCandidates, ctx, a);
}

OpImplementations DescribeHcBridge(const ExecContext& ctx) {
  return DescribeOp("hc_bridge", kHcBridgeCandidates, ctx);
}

}  // namespace dsv4
