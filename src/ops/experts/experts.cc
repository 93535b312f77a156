#include "ops/experts/experts.h"

namespace dsv4 {

void ExpertsRef(const ExecContext& ctx, const ExpertsArgs& a);
void ExpertsCuda(const ExecContext& ctx, const ExpertsArgs& a);
namespace generic {
void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a);
}
#ifdef DSV4_HAVE_AVX2
namespace avx2 {
void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a);
}
namespace avx512 {
void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a);
}
namespace avx512vnni {
void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a);
}
namespace amx {
void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a);
}
#endif

namespace {

constexpr Candidate<ExpertsArgs> kCandidates[] = {
    DSV4_CUDA_ROW(ExpertsCuda)
#ifdef DSV4_HAVE_AVX2
    {"amx", SupportsAmx, amx::ExpertsCpu},
    {"avx512vnni", SupportsAvx512Vnni, avx512vnni::ExpertsCpu},
    {"avx512", SupportsAvx512, avx512::ExpertsCpu},
    {"avx2", SupportsAvx2, avx2::ExpertsCpu},
#endif
    {"generic", SupportsCpu, generic::ExpertsCpu},
    {"ref", SupportsCpu, ExpertsRef},
};

}  // namespace

void Experts(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t t = a.x.dim(0), num_slots = t * a.experts.dim(1);
  DSV4_CHECK_EQ(a.experts.dim(0), t);
  DSV4_CHECK_EQ(a.hidden.dim(0), num_slots);
  DSV4_CHECK_EQ(a.outputs.dim(0), num_slots);
  DSV4_CHECK((!a.shared && ctx.device != DeviceKind::kCpu) || a.shared.shape == a.x.shape);
  DSV4_CHECK(a.y.shape == a.x.shape && a.y.data != a.x.data);
  Choose(kCandidates, ctx).run(ctx, a);
}

OpImplementations DescribeExperts(const ExecContext& ctx) { return DescribeOp("experts", kCandidates, ctx); }

}  // namespace dsv4
