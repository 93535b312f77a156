// Launches the products for one format of tiles, and selects the kernel for a list of row pairs.
#pragma once

#include <algorithm>

#include "ops/experts/expert_few.cuh"
#include "ops/experts/expert_gemm.cuh"
#include "ops/experts/expert_many.cuh"
#include "ops/experts/expert_one.cuh"

namespace dsv4::experts {

template <WeightFormat F, int Planes, bool Up, bool Wide, int kTeams>
void LaunchGemm(const ExecContext& ctx, const GemmArgs& a, int64_t items) {
  const int blocks = static_cast<int>(std::min<int64_t>(2 / kTeams * ctx.gpu.multiprocessors, CeilDiv(items, kTeams)));
  Launch(ctx, ExpertGemmKernel<F, Planes, Up, Wide, kTeams>, dim3(static_cast<unsigned>(blocks)),
         dim3(kTeamThreads * kTeams), static_cast<size_t>(GemmSharedBytes<F>(kTeams, a.x != nullptr, a.k)), a);
}

// One token. Returns false if ExpertOneKernel does not support the shapes.
template <WeightFormat F>
bool LaunchOne(const ExecContext& ctx, const GemmArgs& a, bool up, int64_t items) {
  if constexpr (InfoOf(F).packed()) {
    const bool has_rows = !up || (a.x != nullptr && a.hidden == nullptr && reinterpret_cast<uintptr_t>(a.x) % 16 == 0);
    if (a.experts == nullptr || !has_rows || !OneTokenFits(ctx, up, a.k, a.n, a.num_slots)) return false;
    const int blocks = static_cast<int>(std::min<int64_t>(ctx.gpu.multiprocessors, CeilDiv(items, 2)));
    const auto kernel = a.k % (64 * kWarps * OneRing::kTiles) == 0 ? ExpertOneKernel<F, true>
                                                                   : ExpertOneKernel<F, false>;
    Launch(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(2 * kTeamThreads), OneSharedBytes(a.k), a,
           MakeOneList(items, a.n / (up ? 16 : 32), blocks, up, up && a.always >= 0));
    return true;
  } else {
    return false;
  }
}

// For tokens with FewTokensFit.
template <WeightFormat F, int kTiles>
void LaunchFew(const ExecContext& ctx, const GemmArgs& a, bool up, int64_t tokens, int64_t max_chunks) {
  const int rows = a.n / (up ? 16 : 32);
  const int blocks = static_cast<int>(std::min<int64_t>(ctx.gpu.multiprocessors, CeilDiv(max_chunks * rows, 2)));
  const FewList list = {.tokens = static_cast<int>(tokens),
                        .pairs = static_cast<int>(tokens) * a.num_slots,
                        .rows = rows,
                        .up = up,
                        .known = up && a.always >= 0,
                        .reciprocal = static_cast<uint32_t>(((int64_t{1} << 32) + rows - 1) / rows)};
  Launch(ctx, ExpertFewKernel<F, kTiles>, dim3(static_cast<unsigned>(blocks)), dim3(2 * kTeamThreads),
         static_cast<size_t>(FewSharedBytes<kTiles>(up, a.k, tokens, a.num_slots)), a, list);
}
template <WeightFormat F>
void LaunchFew(const ExecContext& ctx, const GemmArgs& a, bool up, int64_t tokens, int64_t max_chunks) {
  if constexpr (InfoOf(F).packed()) {
    FewTokensFit<4>(up, a.k, a.n, tokens, a.num_slots) ? LaunchFew<F, 4>(ctx, a, up, tokens, max_chunks)
                                                       : LaunchFew<F, 2>(ctx, a, up, tokens, max_chunks);
  }
}

// For tokens with ManyTokensFit.
template <WeightFormat F, bool Up, int kTiles>
void LaunchMany(const ExecContext& ctx, const GemmArgs& a, int64_t max_chunks) {
  Launch(ctx, ExpertManyKernel<F, Up, kTiles>, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors)),
         dim3(kManyTeams * kTeamThreads), static_cast<size_t>(ManyPlaces::kBytes), a, static_cast<int>(max_chunks));
}
template <WeightFormat F>
void LaunchMany(const ExecContext& ctx, const GemmArgs& a, bool up, int64_t max_chunks) {
  if constexpr (InfoOf(F).packed()) {
    if (up) return LaunchMany<F, true, 8>(ctx, a, max_chunks);
    switch (ManyTiles(a.k)) {
      case 4:
        return LaunchMany<F, false, 4>(ctx, a, max_chunks);
      case 2:
        return LaunchMany<F, false, 2>(ctx, a, max_chunks);
      default:
        return LaunchMany<F, false, 1>(ctx, a, max_chunks);
    }
  }
}

template <WeightFormat F, int Planes, bool Up, bool Wide>
void Gemm(const ExecContext& ctx, const GemmArgs& a, int64_t max_chunks) {
  const int64_t items = max_chunks * (Up ? CeilDiv(a.n, 16) : CeilDiv(a.n, 32));
  if constexpr (Planes == 2 && !Wide) {
    if (items <= kTwoTeamItems * ctx.gpu.multiprocessors) {
      if (LaunchOne<F>(ctx, a, Up, items)) return;
      return LaunchGemm<F, Planes, Up, Wide, 2>(ctx, a, items);
    }
  }
  LaunchGemm<F, Planes, Up, Wide, 1>(ctx, a, items);
}

// For tight tiles (experts_tight_cuda.cu). wide: chunks of up to two blocks of columns.
void GemmTight(const ExecContext& ctx, WeightFormat format, bool up, bool wide, const GemmArgs& a, int64_t max_chunks);
void ManyTight(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t max_chunks);
void FewTight(const ExecContext& ctx, WeightFormat format, bool up, const GemmArgs& a, int64_t tokens,
              int64_t max_chunks);

}  // namespace dsv4::experts
