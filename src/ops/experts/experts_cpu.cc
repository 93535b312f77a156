#include "ops/experts/experts.h"

#include "ops/grain.h"
#include "ops/linear/input_rows.h"
#include "tensor/codec/activation.h"

namespace dsv4::DSV4_ISA {

namespace {

// The (token, slot) pairs of each expert that some token chose, in the order of the pairs.
struct Group {
  int32_t expert;
  int64_t begin, end;  // of `pairs`
};

struct Scratch {
  std::vector<int64_t> first;  // [E + 1]
  std::vector<int64_t> pairs;  // [T*A] pair = token * A + slot, sorted by expert
  std::vector<Group> groups;
  InputRows tokens[2][2];                  // [rounded][column order]: a row a token, where some expert wants it so
  std::vector<const float*> rows[2][2];    // the same by pair, in the order of `pairs`
  InputRows hidden[2];                     // [column order], by pair
  std::vector<int64_t> place;              // [T*A] where a pair stands in `pairs`
  std::vector<float*> gate_rows, out_rows;  // in the order of `pairs`
  std::vector<int64_t> costs;               // running sum over groups
};

void GroupByExpert(const ExpertsArgs& a, Scratch& s) {
  const int64_t num_pairs = a.experts.num_elements(), num_experts = static_cast<int64_t>(a.matrices.size());
  const int32_t* experts = a.experts.i32();
  s.first.assign(static_cast<size_t>(num_experts + 1), 0);
  for (int64_t i = 0; i < num_pairs; ++i) {
    DSV4_CHECK(experts[i] >= 0 && experts[i] < num_experts, "expert ", experts[i]);
    ++s.first[static_cast<size_t>(experts[i] + 1)];
  }
  s.groups.clear();
  for (int64_t e = 0; e < num_experts; ++e) {
    int64_t& end = s.first[static_cast<size_t>(e + 1)];
    if (end > 0) s.groups.push_back({static_cast<int32_t>(e), s.first[static_cast<size_t>(e)], 0});
    end += s.first[static_cast<size_t>(e)];
    if (!s.groups.empty() && s.groups.back().expert == e) s.groups.back().end = end;
  }
  s.pairs.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) {
    s.pairs[static_cast<size_t>(s.first[static_cast<size_t>(experts[i])]++)] = i;
  }
}

// Runs fn(group, begin, end) over row tiles [begin, end) of every group, `tiles` of them each, cut among the threads
// by cost: decoding a weight costs about as much as two products.
template <typename Fn>
void ForEachGroupTile(ThreadPool* pool, Scratch& s, int64_t tiles, int64_t products_per_tile, const Fn& fn) {
  s.costs.assign(1, 0);
  for (const Group& g : s.groups) s.costs.push_back(s.costs.back() + tiles * (g.end - g.begin + 2));
  ParallelFor(pool, s.costs.back(), GrainFor(products_per_tile),
              [&](int64_t begin, int64_t end, int) {
                for (size_t i = 0; i < s.groups.size(); ++i) {
                  const int64_t unit = s.groups[i].end - s.groups[i].begin + 2, at = s.costs[i];
                  const int64_t first = CeilDiv(std::max<int64_t>(0, begin - at), unit);
                  const int64_t last = std::min(tiles, CeilDiv(std::max<int64_t>(0, end - at), unit));
                  if (first < last) fn(s.groups[i], first, last);
                }
              });
}

int OrderIndex(const QuantTensor& w) { return static_cast<int>(OrderOf(w.format)); }

bool Rounds(const ExpertsArgs& a) {
  return a.activation == ActivationDtype::kFp8 || a.activation == ActivationDtype::kNvfp4;
}

void RoundRow(const ExpertsArgs& a, const float* x, float* y, int64_t n) {
  if (a.activation == ActivationDtype::kFp8) {
    RoundToFp8Blocks(x, y, n, /*block=*/128);
  } else {
    RoundToNvfp4(x, y, n);
  }
}

// gate[f] = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight
void SwigluRow(float* gate, const float* up, int64_t n, float limit, float weight) {
  const Vec top = Set(limit), bottom = Set(-limit), one = Set(1.0f), factor = Set(weight);
  const auto step = [&](Vec g, Vec u) {
    g = Min(top, g);
    u = Max(bottom, Min(top, u));
    return Mul(Mul(Div(g, Add(one, Exp(Sub(Zero(), g)))), u), factor);
  };
  const int64_t whole = n / kLanes * kLanes, rest = n - whole;
  for (int64_t i = 0; i < whole; i += kLanes) Store(gate + i, step(Load(gate + i), Load(up + i)));
  if (rest > 0)
    StorePartial(gate + whole, step(LoadPartial(gate + whole, rest), LoadPartial(up + whole, rest)), rest);
}

}  // namespace

void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t num_tokens = a.x.dim(0), d = a.x.dim(1), slots = a.experts.dim(1), f = a.hidden.dim(1) / 2;
  const int64_t num_pairs = num_tokens * slots;
  static thread_local Scratch s;
  GroupByExpert(a, s);

  const float* x = a.x.f32();
  float* hidden = a.hidden.f32();
  const auto token_of = [&](int64_t i) { return s.pairs[static_cast<size_t>(i)] / slots; };
  if (Rounds(a)) {
    float* rounded = a.rounded_x.f32();
    ParallelFor(ctx.pool, num_tokens, /*grain=*/4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) RoundRow(a, x + t * d, rounded + t * d, d);
    });
  }
  // Inputs in every form that an expert of this step wants; as a rule all want the same.
  bool wanted[2][2] = {}, wanted_hidden[2] = {};
  for (const Group& g : s.groups) {
    const ExpertMatrices& m = a.matrices[static_cast<size_t>(g.expert)];
    for (const QuantTensor* w : {&m.gate, &m.up}) wanted[Rounds(a) && w->quantised()][OrderIndex(*w)] = true;
    wanted_hidden[OrderIndex(m.down)] = true;
  }
  for (int rounded = 0; rounded < 2; ++rounded) {
    for (int order = 0; order < 2; ++order) {
      if (!wanted[rounded][order]) continue;
      InputRows& tokens = s.tokens[rounded][order];
      const float* from = rounded ? a.rounded_x.f32() : x;
      tokens.Set(ctx.pool, num_tokens, 1, d, static_cast<ColumnOrder>(order), [&](int64_t t) { return from + t * d; });
      std::vector<const float*>& rows = s.rows[rounded][order];
      rows.resize(static_cast<size_t>(num_pairs));
      for (int64_t i = 0; i < num_pairs; ++i) rows[static_cast<size_t>(i)] = tokens.row(token_of(i));
    }
  }
  for (int order = 0; order < 2; ++order) {
    if (wanted_hidden[order]) s.hidden[order].Reserve(num_pairs, 1, f, static_cast<ColumnOrder>(order));
  }
  s.place.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) s.place[static_cast<size_t>(s.pairs[static_cast<size_t>(i)])] = i;
  s.gate_rows.resize(static_cast<size_t>(num_pairs));
  s.out_rows.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t pair = s.pairs[static_cast<size_t>(i)];
    s.gate_rows[static_cast<size_t>(i)] = hidden + pair * 2 * f;
    s.out_rows[static_cast<size_t>(i)] = a.outputs.f32() + pair * d;
  }

  Scratch& shared = s;  // a thread_local names another object on the worker threads
  const int64_t gate_tiles = CeilDiv(f, kTileRows);
  ForEachGroupTile(ctx.pool, s, 2 * gate_tiles, kTileRows * d, [&](const Group& g, int64_t begin, int64_t end) {
    const ExpertMatrices& m = a.matrices[static_cast<size_t>(g.expert)];
    for (const bool up : {false, true}) {  // tiles of the gate, then tiles of up
      const int64_t first = std::clamp<int64_t>(begin - (up ? gate_tiles : 0), 0, gate_tiles) * kTileRows;
      const int64_t last = std::min(
          f, std::clamp<int64_t>(end - (up ? gate_tiles : 0), 0, gate_tiles) * kTileRows);
      if (first >= last) continue;
      const QuantTensor& w = up ? m.up : m.gate;
      const auto& rows = shared.rows[Rounds(a) && w.quantised()][OrderIndex(w)];
      MultiplyRows({.w = &w,
                    .x = rows.data() + g.begin,
                    .y = shared.gate_rows.data() + g.begin,
                    .y_offset = (up ? f : 0) + first,
                    .num_tokens = g.end - g.begin},
                   first, last);
    }
  });

  ParallelFor(ctx.pool, num_pairs, /*grain=*/std::max<int64_t>(1, 8192 / std::max<int64_t>(f, 1)),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t pair = begin; pair < end; ++pair) {
                  float* gate = hidden + pair * 2 * f;
                  SwigluRow(gate, gate + f, f, a.limit, a.weights.f32()[pair]);
                  const QuantTensor& down = a.matrices[static_cast<size_t>(a.experts.i32()[pair])].down;
                  if (Rounds(a) && down.quantised()) RoundRow(a, gate, gate, f);
                  shared.hidden[OrderIndex(down)].SetRow(shared.place[static_cast<size_t>(pair)], gate);
                }
              });

  ForEachGroupTile(ctx.pool, s, CeilDiv(d, kTileRows), kTileRows * f,
                   [&](const Group& g, int64_t begin, int64_t end) {
                     const int64_t first = begin * kTileRows, last = std::min(d, end * kTileRows);
                     const QuantTensor& down = a.matrices[static_cast<size_t>(g.expert)].down;
                     MultiplyRows({.w = &down,
                                   .x = shared.hidden[OrderIndex(down)].rows() + g.begin,
                                   .y = shared.out_rows.data() + g.begin,
                                   .y_offset = first,
                                   .num_tokens = g.end - g.begin},
                                  first, last);
                   });

  const float* outputs = a.outputs.f32();
  ParallelFor(ctx.pool, num_tokens, /*grain=*/std::max<int64_t>(1, 32768 / std::max<int64_t>(d * slots, 1)),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t t = begin; t < end; ++t) {
                  const float* add = a.shared.f32() + t * d;
                  float* y = a.y.f32() + t * d;
                  if (add != y) std::copy_n(add, d, y);
                  for (int64_t slot = 0; slot < slots; ++slot) {
                    const float* out = outputs + (t * slots + slot) * d;
                    for (int64_t c = 0; c < d; ++c) y[c] += out[c];
                  }
                }
              });
}

}  // namespace dsv4::DSV4_ISA
