// A cluster of blocks processes a row, a thread sixteen neighbouring tokens, whose logits and masses stay in shared
// memory (row.cuh). Blocks send each other their results (device/cluster.cuh) without a barrier of the cluster. Sums
// are of whole numbers, so their order does not matter. Cuts are found as in the CPU's sampler. Tokens are binned
// (bins.cuh) by their distance from the largest logit. Only the bin in which a sum reaches its mark is sorted
// (marks.cuh).
#include "ops/sample/marks.cuh"

namespace dsv4 {

namespace {

using namespace sample;  // NOLINT: this file is sample

// Writes the row's token. Called by one thread of the cluster.
struct Choice {
  const Row& row;
  int64_t r;
  SampleRow* rows;
  int32_t* tokens;
  float* logprobs;
  uint64_t raw_sum;

  __device__ __forceinline__ void operator()(int32_t id) const {
    tokens[r] = id;
    if (logprobs != nullptr) {
      logprobs[r] = static_cast<float>(Exponent(row.logits[id], row.raw_largest, 1.0) -
                                       log(static_cast<double>(raw_sum) * (1 / kMassUnit)));
    }
    if (!row.p.counts) return;
    rows[r].num_outputs = row.p.num_outputs + 1;
    if (row.p.output_count != nullptr && row.p.output_count[id] < 65535) ++row.p.output_count[id];
  }
};

// Applies the cuts, then draws.
__device__ __forceinline__ void Draw(Row& row, uint64_t draw, bool is_top_k, bool is_top_p, const Choice& choose) {
  const auto amount = static_cast<uint64_t>(row.p.top_k);
  uint64_t kept_mass = 0;  // 0: the row's whole mass
  uint32_t kept = (1u << kOwn) - 1;
  Parities parity;
  Mark mark = is_top_k ? Mark::kCount : is_top_p ? Mark::kTopP : Mark::kNone;
#pragma unroll 1
  for (;;) {
    if (mark != Mark::kNone) {
      Search q{.mark = mark,
               .amount = amount,
               .in_bin = row.near,
               .wanted = kept_mass == 0 ? -1.0 : WantedMass(row.p.top_p, kept_mass)};
      if (FindMark(row, q, parity, is_top_k)) {
        __syncthreads();
        kept &= q.in_front | (q.in_bin & row.s.keep[row.thread / 2] >> (row.thread % 2 * kOwn));
        if (row.thread == 0) row.s.num_own = 0;
        row.own = 0;
        for (uint32_t bits = kept; bits != 0; bits &= bits - 1) row.own += row.mass[__ffs(static_cast<int>(bits)) - 1];
      }
    }
    if (mark != Mark::kCount || !is_top_p) break;
    kept_mass = SumKept(row, parity);
    if (row.thread == 0) row.s.at_sums.Expect(sizeof row.s.sums);
    mark = Mark::kTopP;
  }
  if (row.p.min_p > 0) ApplyMinP(row, kept);
  const int32_t id = Race(row, kept, draw, parity);
  if (row.rank == 0 && row.thread == 0) choose(id);
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads)
    SampleKernel(const float* logits, SampleRow* rows, int32_t* tokens, float* logprobs, int v) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  AllowNext();
  const int64_t r = blockIdx.x / kCluster;
  const int rank = static_cast<int>(blockIdx.x % kCluster), thread = static_cast<int>(threadIdx.x);
  InitShared(s);
  ClusterArrive();
  ClusterWait();
  WaitForPrevious();

  const int first = (rank * kThreads + thread) * kOwn;
  SampleRow p;
  Row row{.s = s,
          .rank = rank,
          .thread = thread,
          .warp = thread / 32,
          .lane = thread % 32,
          .logits = logits + r * v,
          .first = first,
          .own_tokens = max(0, min(kOwn, v - first)),
          .logit = s.logit[thread],
          .mass = s.mass[thread],
          .p = p};
  const bool nan = LoadLogits(row);
  p = rows[r];
  const uint32_t raw_key = nan ? 0xFFFFFFFFu : KeyOf(row.largest);
  Adjust(row);
  Largest largest = SendLargest(row, raw_key);
  const bool is_top_k = p.top_k > 0 && p.top_k < v, is_top_p = p.top_p < 1.0f, cuts = is_top_k || is_top_p;
  const uint64_t draw = RandomBits(p.seed, p.num_outputs);
  row.inverse = 1.0 / static_cast<double>(p.temperature);
  row.bin_scale = static_cast<float>(fmin(static_cast<double>(kBinsPerUnit) * row.inverse, 1e30));
  LargestOfRow(row, largest);
  if (const int32_t error = ErrorOf(largest); error != 0) {
    if (rank == 0 && thread == 0) {
      tokens[r] = error;
      if (logprobs != nullptr) logprobs[r] = __int_as_float(0x7FFFFFFF);
    }
    return;
  }
  const uint64_t raw_sum = logprobs != nullptr ? RawSum(row) : 0;
  const Choice choose{row, r, rows, tokens, logprobs, raw_sum};
  MakeMasses(row, cuts, is_top_k);
  if (p.temperature == 0) {
    if (rank == 0 && thread == 0) choose(static_cast<int32_t>(~largest.not_id));
    return;
  }
  if (cuts) {
    __syncthreads();
    SendGroups(s.distances, s.at_distances, rank);
  }
  Draw(row, draw, is_top_k, is_top_p, choose);
}

}  // namespace

void SampleCuda(const ExecContext& ctx, const SampleArgs& a) {
  const cudaError_t allowed = cudaFuncSetAttribute(SampleKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (allowed != cudaSuccess) NoteCudaError(ctx, allowed, "clusters of 16 blocks");
  Launch(ctx, SampleKernel, dim3(static_cast<unsigned>(a.logits.dim(0) * sample::kCluster)), dim3(sample::kThreads),
         sizeof(sample::Shared), a.logits.f32(), a.rows, a.tokens.i32(), a.logprobs ? a.logprobs.f32() : nullptr,
         static_cast<int>(a.logits.dim(1)));
}

}  // namespace dsv4
