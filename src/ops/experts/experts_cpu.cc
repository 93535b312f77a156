#include "ops/experts/experts.h"

#include "ops/grain.h"
#include "ops/idle_row.h"
#include "ops/linear/rows/input_rows.h"
#include "ops/linear/integer/integer_rows.h"
#include "ops/linear/linear.h"
#include "ops/linear/amx/tile_rows.h"
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
  IntegerRows integer_tokens, integer_hidden;  // the same as integers, for weights that want them
  std::vector<const CacheLine*> integer_rows;
#ifdef DSV4_SIMD_AMX
  TilePanels tiles[2][2], hidden_tiles[2];  // the same for tile products, a panel a group
#endif
  std::vector<int64_t> place;              // [T*A] where a pair stands in `pairs`
  std::vector<float*> gate_rows, out_rows;  // in the order of `pairs`
  std::vector<int64_t> costs;               // running sum over groups
};

void GroupByExpert(const ExpertsArgs& a, Scratch& s) {
  const int64_t num_pairs = a.experts.num_elements(), num_experts = static_cast<int64_t>(a.matrices.size());
  const int32_t* experts = a.experts.i32();
  s.first.assign(static_cast<size_t>(num_experts + 1), 0);
  for (int64_t i = 0; i < num_pairs; ++i) {
    DSV4_CHECK(experts[i] >= kNoExpert && experts[i] < num_experts, "expert ", experts[i]);
    if (experts[i] != kNoExpert) ++s.first[static_cast<size_t>(experts[i] + 1)];
  }
  s.groups.clear();
  for (int64_t e = 0; e < num_experts; ++e) {
    int64_t& end = s.first[static_cast<size_t>(e + 1)];
    if (end > 0) s.groups.push_back({static_cast<int32_t>(e), s.first[static_cast<size_t>(e)], 0});
    end += s.first[static_cast<size_t>(e)];
    if (!s.groups.empty() && s.groups.back().expert == e) s.groups.back().end = end;
  }
  s.pairs.resize(static_cast<size_t>(num_pairs));
  int64_t none = s.first[static_cast<size_t>(num_experts)];  // pairs without an expert lie behind all groups
  for (int64_t i = 0; i < num_pairs; ++i) {
    int64_t& at = experts[i] == kNoExpert ? none : s.first[static_cast<size_t>(experts[i])];
    s.pairs[static_cast<size_t>(at++)] = i;
  }
}

#ifdef DSV4_SIMD_AMX
constexpr int64_t kRowUnit = TileProduct::kRows;  // rows of a matrix that stay together
constexpr int64_t kDecodeCost = 20;               // products that cost as much as decoding a weight
bool UsesTiles(const QuantTensor& w) { return TakesTiles(w); }
#else
constexpr int64_t kRowUnit = kTileRows;
constexpr int64_t kDecodeCost = 2;
bool UsesTiles(const QuantTensor&) { return false; }
#endif

// Runs fn(group, begin, end) over row tiles [begin, end) of every group, `tiles` of them each, cut among the threads
// by cost.
template <typename Fn>
void ForEachGroupTile(ThreadPool* pool, Scratch& s, int64_t tiles, int64_t products_per_tile, const Fn& fn) {
  s.costs.assign(1, 0);
  for (const Group& g : s.groups) s.costs.push_back(s.costs.back() + tiles * (g.end - g.begin + kDecodeCost));
  ParallelFor(pool, s.costs.back(), GrainFor(products_per_tile),
              [&](int64_t begin, int64_t end, int) {
                for (size_t i = 0; i < s.groups.size(); ++i) {
                  const int64_t unit = s.groups[i].end - s.groups[i].begin + kDecodeCost, at = s.costs[i];
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

// Rows [first, last) of p.w times the inputs of group g.
template <typename Product>
void MultiplyGroup(Product p, const std::vector<float*>& y, const Group& g, int64_t y_offset, int64_t first,
                   int64_t last) {
  p.y = y.data() + g.begin;
  p.y_offset = y_offset;
  p.num_tokens = g.end - g.begin;
  MultiplyRows(p, first, last);
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
  static thread_local Scratch scratch;
  Scratch& s = scratch;  // a thread_local names another object on the worker threads
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
  const auto takes_integers = [&a](const QuantTensor& w) { return RoundsToIntegers(a.activation, w.format); };
  struct Wanted {
    bool rows[2][2] = {}, tiles[2][2] = {}, integers = false;  // [rounded][column order]
  };
  Wanted wanted, wanted_hidden;
  const auto want = [&](Wanted& forms, const QuantTensor& w, bool rounded) {
    if (takes_integers(w)) {
      forms.integers = true;
    } else {
      (UsesTiles(w) ? forms.tiles : forms.rows)[rounded][OrderIndex(w)] = true;
    }
  };
  for (const Group& g : s.groups) {
    const ExpertMatrices& m = a.matrices[static_cast<size_t>(g.expert)];
    for (const QuantTensor* w : {&m.gate, &m.up}) want(wanted, *w, Rounds(a) && w->quantised());
    want(wanted_hidden, m.down, /*rounded=*/false);  // hidden rows are rounded where they lie
  }
  if (wanted.integers) {
    s.integer_tokens.Set(ctx.pool, num_tokens, 1, d, a.activation, [&](int64_t t) { return x + t * d; });
    s.integer_rows.resize(static_cast<size_t>(num_pairs));
    for (int64_t i = 0; i < num_pairs; ++i) s.integer_rows[static_cast<size_t>(i)] = s.integer_tokens.row(token_of(i));
  }
  if (wanted_hidden.integers) s.integer_hidden.Reserve(num_pairs, 1, f, a.activation);
  for (int rounded = 0; rounded < 2; ++rounded) {
    for (int order = 0; order < 2; ++order) {
      if (!wanted.rows[rounded][order]) continue;
      InputRows& tokens = s.tokens[rounded][order];
      const float* from = rounded ? a.rounded_x.f32() : x;
      tokens.Set(ctx.pool, num_tokens, 1, d, static_cast<ColumnOrder>(order), [&](int64_t t) { return from + t * d; });
      std::vector<const float*>& rows = s.rows[rounded][order];
      rows.resize(static_cast<size_t>(num_pairs));
      for (int64_t i = 0; i < num_pairs; ++i) rows[static_cast<size_t>(i)] = tokens.row(token_of(i));
    }
  }
  for (int order = 0; order < 2; ++order) {
    if (wanted_hidden.rows[0][order]) s.hidden[order].Reserve(num_pairs, 1, f, static_cast<ColumnOrder>(order));
  }
#ifdef DSV4_SIMD_AMX
  const auto num_groups = static_cast<int64_t>(s.groups.size());
  const auto group_size = [&](int64_t i) {
    return s.groups[static_cast<size_t>(i)].end - s.groups[static_cast<size_t>(i)].begin;
  };
  const auto place_of = [&](int64_t i, int64_t t) { return s.groups[static_cast<size_t>(i)].begin + t; };
  for (int rounded = 0; rounded < 2; ++rounded) {
    for (int order = 0; order < 2; ++order) {
      if (!wanted.tiles[rounded][order]) continue;
      const float* from = rounded ? a.rounded_x.f32() : x;
      s.tiles[rounded][order].Set(ctx.pool, num_groups, d, static_cast<ColumnOrder>(order), group_size,
                                  [&](int64_t i, int64_t t) { return from + token_of(place_of(i, t)) * d; });
    }
  }
#endif
  s.place.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) s.place[static_cast<size_t>(s.pairs[static_cast<size_t>(i)])] = i;
  s.gate_rows.resize(static_cast<size_t>(num_pairs));
  s.out_rows.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t pair = s.pairs[static_cast<size_t>(i)];
    s.gate_rows[static_cast<size_t>(i)] = hidden + pair * 2 * f;
    s.out_rows[static_cast<size_t>(i)] = a.outputs.f32() + pair * d;
  }

  const int64_t gate_tiles = CeilDiv(f, kRowUnit);
  ForEachGroupTile(ctx.pool, s, 2 * gate_tiles, kRowUnit * d, [&](const Group& g, int64_t begin, int64_t end) {
    const ExpertMatrices& m = a.matrices[static_cast<size_t>(g.expert)];
    for (const bool up : {false, true}) {  // tiles of the gate, then tiles of up
      const int64_t first = std::clamp<int64_t>(begin - (up ? gate_tiles : 0), 0, gate_tiles) * kRowUnit;
      const int64_t last = std::min(
          f, std::clamp<int64_t>(end - (up ? gate_tiles : 0), 0, gate_tiles) * kRowUnit);
      if (first >= last) continue;
      const QuantTensor& w = up ? m.up : m.gate;
      const int64_t to = (up ? f : 0) + first;
#ifdef DSV4_SIMD_AMX
      if (UsesTiles(w) && !takes_integers(w)) {
        const TilePanel* panel = &s.tiles[Rounds(a) && w.quantised()][OrderIndex(w)].panel(&g - s.groups.data());
        MultiplyGroup(TileProduct{.w = &w, .x = panel}, s.gate_rows, g, to, first, last);
        continue;
      }
#endif
      if (takes_integers(w)) {
        const IntegerProduct p{.w = &w, .activation = a.activation, .x = s.integer_rows.data() + g.begin};
        MultiplyGroup(p, s.gate_rows, g, to, first, last);
      } else {
        const auto& rows = s.rows[Rounds(a) && w.quantised()][OrderIndex(w)];
        MultiplyGroup(RowProduct{.w = &w, .x = rows.data() + g.begin}, s.gate_rows, g, to, first, last);
      }
    }
  });

  ParallelFor(ctx.pool, num_pairs, /*grain=*/std::max<int64_t>(1, 8192 / std::max<int64_t>(f, 1)),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t pair = begin; pair < end; ++pair) {
                  if (a.experts.i32()[pair] == kNoExpert) {
                    std::fill_n(a.outputs.f32() + pair * d, d, 0.0f);
                    continue;
                  }
                  float* gate = hidden + pair * 2 * f;
                  SwigluRow(gate, gate + f, f, a.limit, a.weights.f32()[pair]);
                  const QuantTensor& down = a.matrices[static_cast<size_t>(a.experts.i32()[pair])].down;
                  if (Rounds(a) && down.quantised()) RoundRow(a, gate, gate, f);
                  const int64_t place = s.place[static_cast<size_t>(pair)];
                  if (takes_integers(down)) {
                    s.integer_hidden.SetRow(place, gate);
                  } else if (!UsesTiles(down)) {
                    s.hidden[OrderIndex(down)].SetRow(place, gate);
                  }
                }
              });
#ifdef DSV4_SIMD_AMX
  for (int order = 0; order < 2; ++order) {
    if (!wanted_hidden.tiles[0][order]) continue;
    s.hidden_tiles[order].Set(
        ctx.pool, num_groups, f, static_cast<ColumnOrder>(order), group_size, [&](int64_t i, int64_t t) {
          return hidden + s.pairs[static_cast<size_t>(s.groups[static_cast<size_t>(i)].begin + t)] * 2 * f;
        });
  }
#endif

  ForEachGroupTile(ctx.pool, s, CeilDiv(d, kRowUnit), kRowUnit * f,
                   [&](const Group& g, int64_t begin, int64_t end) {
                     const int64_t first = begin * kRowUnit, last = std::min(d, end * kRowUnit);
                     const QuantTensor& down = a.matrices[static_cast<size_t>(g.expert)].down;
#ifdef DSV4_SIMD_AMX
                     if (UsesTiles(down) && !takes_integers(down)) {
                       const TilePanel* panel = &s.hidden_tiles[OrderIndex(down)].panel(&g - s.groups.data());
                       return MultiplyGroup(TileProduct{.w = &down, .x = panel}, s.out_rows, g, first, first, last);
                     }
#endif
                     if (takes_integers(down)) {
                       const IntegerProduct p{
                           .w = &down, .activation = a.activation, .x = s.integer_hidden.rows() + g.begin};
                       MultiplyGroup(p, s.out_rows, g, first, first, last);
                     } else {
                       const InputRows& rows = s.hidden[OrderIndex(down)];
                       MultiplyGroup(RowProduct{.w = &down, .x = rows.rows() + g.begin}, s.out_rows, g, first, first,
                                     last);
                     }
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
