#include "ops/experts/experts.h"

#include <string>
#include <vector>

#include "ops/cpu_rows.h"

namespace dsv4 {

void ExpertsRef(const ExecContext& ctx, const ExpertsArgs& a);
void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& a);
DSV4_DECLARE_CPU_PRODUCT(ExpertsCpu, ExpertsArgs)

namespace {

constexpr Candidate<ExpertsArgs> kExpertsCandidates[] = {
    DSV4_CUDA_ROW(ExpertsCuda)
    DSV4_CPU_PRODUCT_ROWS(ExpertsCpu)
    {"ref", SupportsCpu, ExpertsRef},
};

}  // namespace

void Experts(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t t = a.x.dim(0), num_slots = t * a.experts.dim(1);
  DSV4_CHECK_EQ(a.experts.dim(0), t);
  DSV4_CHECK_EQ(a.hidden.dim(0), num_slots);
  DSV4_CHECK_EQ(a.outputs.dim(0), num_slots);
  DSV4_CHECK((!a.shared && ctx.device != DeviceKind::kCpu) || a.shared.shape == a.x.shape);
  DSV4_CHECK((!a.y && !a.shared && ctx.device != DeviceKind::kCpu) || (a.y.shape == a.x.shape && a.y.data != a.x.data));
  RunOp("experts", kExpertsCandidates, ctx, a);
}

OpImplementations DescribeExperts(const ExecContext& ctx) { return DescribeOp("experts", kExpertsCandidates, ctx); }

OpWork WorkOf(const ExpertsArgs& a) {
  double bytes = 0, products = 0;
  std::vector<bool> named(a.matrices.size());
  const int64_t num_pairs = a.experts.num_elements();
  for (int64_t i = 0; i < num_pairs; ++i) {
    const auto e = static_cast<size_t>(a.experts.i32()[i]);
    const ExpertMatrices& m = a.matrices[e];
    for (const QuantTensor* w : {&m.gate, &m.up, &m.down}) {
      if (!named[e]) bytes += static_cast<double>(FileBytes(*w));
      products += static_cast<double>(w->rows * w->cols);
    }
    named[e] = true;
  }
  return {.detail = std::string(NameOf(a.matrices.front().gate.format)), .bytes = bytes, .products = products};
}

}  // namespace dsv4
