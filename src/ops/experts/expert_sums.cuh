// Adds the sums of a team's warps, each over its part of K, in order. All warps write to shared memory; one warp, a
// different one every turn, adds them and writes the launch's results.
#pragma once

#include "ops/experts/expert_rows.cuh"
#include "ops/experts/expert_team.cuh"
#include "ops/swiglu/swiglu_cuda.cuh"

namespace dsv4::experts {

// The rows and columns that the sums belong to.
struct SumsOf {
  int columns, begin, row;  // begin: of the columns' pairs
  float scale0, scale1;
};

template <class G>
struct TeamSums {
  int turn = 0;       // blocks of eight columns summed so far
  int due_turn = -1;  // the turn that this warp must add
  SumsOf due = {};

  // Stores the lane's sums of both streams; in this warp's turn they become due.
  __device__ __forceinline__ void Store(const Team<G>& team, const float (&sum0)[4], const float (&sum1)[4],
                                        const SumsOf& of) {
    const int set = turn % 2, phase = turn / 2 % 2;
    BarrierWait(team.sums_free + 8 * set, phase ^ 1);
    float* mine = team.partial + (set * kWarps + team.warp) * kPartial + 2 * team.t * kColumnStride + team.g;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (2 * team.t + c < of.columns) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          mine[(8 * s + c) * kColumnStride] = (s == 0 ? sum0 : sum1)[c];
          mine[(8 * s + c) * kColumnStride + 8] = (s == 0 ? sum0 : sum1)[2 + c];
        }
      }
    }
    BarrierArrive(team.sums_full + 8 * set);
    if (turn % kWarps == team.warp) due_turn = turn, due = of;
    ++turn;
  }

  __device__ __forceinline__ void AddUp(const GemmArgs& a, const Team<G>& team, const Extent& e) {
    if (due_turn < 0) return;
    const int set = due_turn % 2, phase = due_turn / 2 % 2, out_row = team.lane % 16;
    due_turn = -1;
    BarrierWait(team.sums_full + 8 * set, phase);
    for (int column = team.lane / 16; column < due.columns; column += 2) {
      const int pair = a.experts != nullptr ? due.begin + column : a.pairs[due.begin + column];
      const float* from = team.partial + set * kWarps * kPartial + column * kColumnStride + out_row;
      float first = 0, second = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        first += from[w * kPartial];
        second += from[w * kPartial + 8 * kColumnStride];
      }
      first *= due.scale0;
      second *= due.scale1;
      if constexpr (G::Up) {
        WriteHidden(a, e, pair, 16 * due.row + out_row, first, second);
      } else {
        float* to = a.outputs + int64_t{pair} * a.n;
        const int f = 32 * due.row + out_row;
        if (f < a.n) to[f] = first;
        if (f + 16 < a.n) to[f + 16] = second;
      }
    }
    BarrierArrive(team.sums_free + 8 * set);
  }

 private:
  // Writes channel f of the pair's h; zeros after the last channel.
  __device__ __forceinline__ void WriteHidden(const GemmArgs& a, const Extent& e, int pair, int f, float gate,
                                              float up) const {
    const float h = f < a.n ? SwigluValue(gate, up, a.limit) * a.weights[pair] : 0.0f;
    if (a.hidden != nullptr) {
      if (f < a.n) a.hidden[int64_t{pair} * 2 * a.n + f] = h;
      return;
    }
    const int padded = static_cast<int>(PaddedColumns(a.n));
    uint16_t part[G::kPlanes];
    SplitBf16<G::kPlanes>(h, part);
#pragma unroll
    for (int p = 0; p < G::kPlanes; ++p) {
      uint16_t* to = a.hidden_planes + p * a.hidden_plane_elements + int64_t{pair} * padded;
      to[f] = part[p];
      if (due.row == e.rows - 1) {
        for (int c = f + 16; c < padded; c += 16) to[c] = 0;
      }
    }
  }
};

}  // namespace dsv4::experts
