// Random experts with a batch that chooses among them, and ways to run a part of it: kernels of a CPU, or the GPU.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/experts/experts.h"
#include "support/activation_blocks.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {

inline constexpr float kSwigluLimit = 3.0f;  // low, so that both clamps act

// Experts of shape [F, D]. `hot`: every token chooses expert 0. The last expert is never chosen if there are enough
// others. If there are fewer experts than choices, a token has some of them twice.
struct ExpertsLayer {
  ExpertsLayer(Random& random, QuantCase kind, int64_t num_experts, int64_t d_, int64_t f_, int64_t t_, int64_t slots_,
               bool hot = false)
      : d(d_),
        f(f_),
        t(t_),
        slots(slots_),
        x({t, d}, random.Normals(t * d, 0.2f)),
        experts({t, slots}),
        weights({t, slots}, random.Uniforms(t * slots, 0, 1)),
        shared({t, d}, random.Normals(t * d)) {
    for (int64_t e = 0; e < num_experts; ++e) {
      gate.emplace_back(random, kind, f, d);
      up.emplace_back(random, kind, f, d);
      down.emplace_back(random, kind, d, f);
      matrices.push_back({gate.back().tensor(), up.back().tensor(), down.back().tensor()});
    }
    for (int64_t i = 0; i < t; ++i) {
      std::vector<int32_t> order = random.Permutation(num_experts - (num_experts > slots ? 1 : 0));
      if (hot) std::swap(order[0], *std::find(order.begin(), order.end(), 0));
      for (int64_t a = 0; a < slots; ++a) experts[i * slots + a] = order[static_cast<size_t>(a) % order.size()];
    }
  }

  int64_t d, f, t, slots;
  GuardBuffer<float> x;
  GuardBuffer<int32_t> experts;
  GuardBuffer<float> weights, shared;
  std::vector<QuantFixture> gate, up, down;
  std::vector<ExpertMatrices> matrices;
};

// Wide tiles: the tile width of the rows' format.
inline std::vector<ExpertMatrices> WithWideTiles(std::vector<ExpertMatrices> matrices) {
  for (ExpertMatrices& m : matrices) {
    for (QuantTensor* w : {&m.gate, &m.up, &m.down}) w->format = FormatOfRows(w->format);
  }
  return matrices;
}

// The same call with operands in the GPU's memory; `like` may have less scratch memory.
inline void ExpertsOnGpu(const ExecContext& like, const ExpertsArgs& a) {
  Mirror gpu(like);
  if (like.scratch.bytes > 0) gpu.ctx().scratch.bytes = like.scratch.bytes;
  std::vector<ExpertMatrices> matrices;
  for (const ExpertMatrices& m : a.matrices)
    matrices.push_back({gpu.Weight(m.gate), gpu.Weight(m.up), gpu.Weight(m.down)});
  ExpertsArgs there = a;
  there.y = gpu.Out(a.y);
  there.x = gpu.In(a.x);
  there.experts = gpu.In(a.experts);
  there.weights = gpu.In(a.weights);
  there.matrices = {gpu.Array(matrices), matrices.size()};
  there.first = matrices[0];
  there.hidden = gpu.Temp(a.hidden.shape);
  there.outputs = gpu.Temp(a.outputs.shape);
  there.rounded_x = gpu.Temp(a.x.shape);
  there.shared = gpu.In(a.shared, a.y, there.y);
  if (a.x_blocks != nullptr) {
    const auto bytes = static_cast<int64_t>(
        ActivationBlocksBytes(static_cast<size_t>(a.x.dim(0)), static_cast<size_t>(a.x.dim(1))));
    there.x_blocks = gpu.Array(std::vector<uint8_t>(a.x_blocks, a.x_blocks + bytes));
  }
  Experts(gpu.ctx(), there);
  gpu.Finish();
}

// The way to run a part of a batch.
struct ExpertsRun {
  void (*op)(const ExecContext& ctx, const ExpertsArgs& args) = Experts;
  ExecContext ctx = {};
  ActivationDtype activation = ActivationDtype::kNative;
  bool in_place = false;     // `shared` is y
  int32_t always = -1;       // ExpertsArgs::always
  bool from_blocks = false;  // x is given as FP16 in blocks, and poison as float32
};

// Output for tokens [begin, end) of the layer's batch.
inline std::vector<float> OutputOf(ExpertsLayer& l, int64_t begin, int64_t end, const ExpertsRun& run = {}) {
  const int64_t t = end - begin;
  GuardBuffer<float> hidden({t * l.slots, 2 * l.f}), outputs({t * l.slots, l.d}), rounded({t, l.d}), y({t, l.d}),
      poison({t, l.d});
  const Tensor x = l.x.tensor().Rows(begin, t), shared = l.shared.tensor().Rows(begin, t);
  std::vector<uint8_t> blocks;
  if (run.from_blocks) {
    const auto num_rows = static_cast<size_t>(t), columns = static_cast<size_t>(l.d);
    blocks = AsBlocks({x.f32(), num_rows * columns}, num_rows, columns);
  }
  if (run.in_place) std::copy_n(shared.f32(), t * l.d, y.data());
  run.op(run.ctx, {.x = run.from_blocks ? poison.tensor() : x,
                   .experts = l.experts.tensor().Rows(begin, t),
                   .weights = l.weights.tensor().Rows(begin, t),
                   .matrices = l.matrices,
                   .limit = kSwigluLimit,
                   .activation = run.activation,
                   .hidden = hidden.tensor(),
                   .outputs = outputs.tensor(),
                   .rounded_x = rounded.tensor(),
                   .shared = run.in_place ? y.tensor() : shared,
                   .y = y.tensor(),
                   .always = run.always,
                   .x_blocks = run.from_blocks ? blocks.data() : nullptr});
  return y.values();
}
inline std::vector<float> OutputOf(ExpertsLayer& l, const ExpertsRun& run = {}) { return OutputOf(l, 0, l.t, run); }

}  // namespace dsv4::test
