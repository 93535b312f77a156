#include "ops/experts/experts.h"

#include "ops/grain.h"
#include "ops/idle_row.h"
#include "ops/linear/amx/tile_rows.h"
#include "ops/linear/integer/integer_rows.h"
#include "ops/linear/linear.h"
#include "ops/linear/rows/input_rows.h"
#include "tensor/codec/activation.h"

namespace dsv4::DSV4_ISA {

namespace {

// The (token, choice) pairs of each chosen expert, in the order of the pairs.
struct Group {
  int32_t expert;
  int64_t begin, end;  // of `pairs`
};

struct Scratch {
  std::vector<int64_t> first;  // [E + 1]
  std::vector<int64_t> pairs;  // [T*A] pair = token * A + choice, sorted by expert
  std::vector<Group> groups;
  InputRows tokens[2][2];                // [rounded][column order]: one row per token, if an expert needs this form
  std::vector<const float*> rows[2][2];  // the same by pair, in the order of `pairs`
  InputRows hidden[2];                   // [column order], by pair
  IntegerRows integer_tokens, integer_hidden;  // the same as integers, for weights that need integers
  std::vector<const CacheLine*> integer_rows;
#ifdef DSV4_SIMD_AMX
  TilePanels tiles[2][2], hidden_tiles[2];  // the same for tile products, one panel per group
#endif
  std::vector<int64_t> place;               // [T*A] index of a pair in `pairs`
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
  int64_t none = s.first[static_cast<size_t>(num_experts)];  // pairs without an expert come after all groups
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

// Runs fn(group, begin, end) over row tiles [begin, end) of every group, each with `tiles` of them. Threads divide them
// by cost.
template <typename Fn>
void ForEachGroupTile(ThreadPool* pool, Scratch& s, int64_t tiles, int64_t products_per_tile, const Fn& fn) {
  s.costs.assign(1, 0);
  for (const Group& g : s.groups) s.costs.push_back(s.costs.back() + tiles * (g.end - g.begin + kDecodeCost));
  ParallelFor(pool, s.costs.back(), GrainFor(products_per_tile), [&](int64_t begin, int64_t end, int) {
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
  if (rest > 0) StorePartial(gate + whole, step(LoadPartial(gate + whole, rest), LoadPartial(up + whole, rest)), rest);
}

// The forms of inputs that the experts of a step need; usually all need the same.
struct Wanted {
  bool rows[2][2] = {}, tiles[2][2] = {}, integers = false;  // [rounded][column order]
};

// One call, in the order of the contract. The caller owns `scratch`; its memory is reused in the next call.
class Call {
 public:
  Call(const ExecContext& ctx, const ExpertsArgs& a, Scratch& scratch)
      : pool_(ctx.pool),
        a_(a),
        s_(scratch),
        num_tokens_(a.x.dim(0)),
        d_(a.x.dim(1)),
        slots_(a.experts.dim(1)),
        f_(a.hidden.dim(1) / 2),
        num_pairs_(num_tokens_ * slots_),
        hidden_(a.hidden.f32()) {}

  void Run() {
    GroupByExpert(a_, s_);
    if (Rounds(a_)) RoundTokens();
    FindForms();
    PlaceTokens();
    PlaceOutputs();
    MultiplyGateAndUp();
    MakeHidden();
    MultiplyDown();
    AddUp();
  }

 private:
  int64_t token_of(int64_t i) const { return s_.pairs[static_cast<size_t>(i)] / slots_; }
  const ExpertMatrices& matrices_of(const Group& g) const { return a_.matrices[static_cast<size_t>(g.expert)]; }
  bool TakesIntegers(const QuantTensor& w) const { return RoundsToIntegers(a_.activation, w.format); }
  bool RoundsFor(const QuantTensor& w) const { return Rounds(a_) && w.quantised(); }
  const float* TokensFor(bool rounded) const { return rounded ? a_.rounded_x.f32() : a_.x.f32(); }

  void RoundTokens() const {
    ParallelFor(pool_, num_tokens_, /*grain=*/4, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) RoundRow(a_, a_.x.f32() + t * d_, a_.rounded_x.f32() + t * d_, d_);
    });
  }

  void Want(Wanted& forms, const QuantTensor& w, bool rounded) const {
    if (TakesIntegers(w)) {
      forms.integers = true;
    } else {
      (UsesTiles(w) ? forms.tiles : forms.rows)[rounded][OrderIndex(w)] = true;
    }
  }
  void FindForms() {
    for (const Group& g : s_.groups) {
      const ExpertMatrices& m = matrices_of(g);
      for (const QuantTensor* w : {&m.gate, &m.up}) Want(wanted_, *w, RoundsFor(*w));
      Want(wanted_hidden_, m.down, /*rounded=*/false);  // hidden rows are rounded in place
    }
  }

  void PlaceTokens() {
    if (wanted_.integers) {
      s_.integer_tokens.Set(pool_, num_tokens_, 1, d_, a_.activation, [&](int64_t t) { return a_.x.f32() + t * d_; });
      s_.integer_rows.resize(static_cast<size_t>(num_pairs_));
      for (int64_t i = 0; i < num_pairs_; ++i)
        s_.integer_rows[static_cast<size_t>(i)] = s_.integer_tokens.row(token_of(i));
    }
    if (wanted_hidden_.integers) s_.integer_hidden.Reserve(num_pairs_, 1, f_, a_.activation);
    for (int order = 0; order < 2; ++order) {
      for (const bool rounded : {false, true}) {
        if (wanted_.rows[rounded][order]) PlaceRows(rounded, order);
        if (wanted_.tiles[rounded][order]) PlaceTiles(rounded, order);
      }
      if (wanted_hidden_.rows[0][order]) s_.hidden[order].Reserve(num_pairs_, 1, f_, static_cast<ColumnOrder>(order));
    }
  }
  void PlaceRows(bool rounded, int order) {
    InputRows& tokens = s_.tokens[rounded][order];
    const float* from = TokensFor(rounded);
    tokens.Set(pool_, num_tokens_, 1, d_, static_cast<ColumnOrder>(order), [&](int64_t t) { return from + t * d_; });
    std::vector<const float*>& rows = s_.rows[rounded][order];
    rows.resize(static_cast<size_t>(num_pairs_));
    for (int64_t i = 0; i < num_pairs_; ++i) rows[static_cast<size_t>(i)] = tokens.row(token_of(i));
  }

#ifdef DSV4_SIMD_AMX
  // row_of(i): the input of the i-th of `pairs`.
  template <typename RowOf>
  void SetTiles(TilePanels& tiles, int64_t columns, int order, const RowOf& row_of) {
    tiles.Set(
        pool_, static_cast<int64_t>(s_.groups.size()), columns, static_cast<ColumnOrder>(order),
        [&](int64_t g) { return s_.groups[static_cast<size_t>(g)].end - s_.groups[static_cast<size_t>(g)].begin; },
        [&](int64_t g, int64_t t) { return row_of(s_.groups[static_cast<size_t>(g)].begin + t); });
  }
  void PlaceTiles(bool rounded, int order) {
    const float* from = TokensFor(rounded);
    SetTiles(s_.tiles[rounded][order], d_, order, [&](int64_t i) { return from + token_of(i) * d_; });
  }
  void PlaceHiddenTiles() {
    for (int order = 0; order < 2; ++order) {
      if (!wanted_hidden_.tiles[0][order]) continue;
      SetTiles(s_.hidden_tiles[order], f_, order,
               [&](int64_t i) { return hidden_ + s_.pairs[static_cast<size_t>(i)] * 2 * f_; });
    }
  }
#else
  void PlaceTiles(bool, int) {}
  void PlaceHiddenTiles() {}
#endif

  void PlaceOutputs() {
    const auto size = static_cast<size_t>(num_pairs_);
    s_.place.resize(size), s_.gate_rows.resize(size), s_.out_rows.resize(size);
    for (size_t i = 0; i < size; ++i) {
      const int64_t pair = s_.pairs[i];
      s_.place[static_cast<size_t>(pair)] = static_cast<int64_t>(i);
      s_.gate_rows[i] = hidden_ + pair * 2 * f_;
      s_.out_rows[i] = a_.outputs.f32() + pair * d_;
    }
  }

  // Rows [first, last) of w times the tokens of group g, to column `to` of their hidden rows.
  void MultiplyIn(const Group& g, const QuantTensor& w, int64_t to, int64_t first, int64_t last) const {
    const bool rounded = RoundsFor(w);
    const int order = OrderIndex(w);
    if (TakesIntegers(w)) {
      const IntegerProduct p{.w = &w, .activation = a_.activation, .x = s_.integer_rows.data() + g.begin};
      return MultiplyGroup(p, s_.gate_rows, g, to, first, last);
    }
#ifdef DSV4_SIMD_AMX
    if (UsesTiles(w)) {
      const TilePanel* panel = &s_.tiles[rounded][order].panel(&g - s_.groups.data());
      return MultiplyGroup(TileProduct{.w = &w, .x = panel}, s_.gate_rows, g, to, first, last);
    }
#endif
    const RowProduct p{.w = &w, .x = s_.rows[rounded][order].data() + g.begin};
    MultiplyGroup(p, s_.gate_rows, g, to, first, last);
  }
  void MultiplyGateAndUp() {
    const int64_t gate_tiles = CeilDiv(f_, kRowUnit);
    ForEachGroupTile(pool_, s_, 2 * gate_tiles, kRowUnit * d_, [&](const Group& g, int64_t begin, int64_t end) {
      const ExpertMatrices& m = matrices_of(g);
      for (const bool up : {false, true}) {  // tiles of the gate, then tiles of up
        const int64_t before = up ? gate_tiles : 0;
        const int64_t first = std::clamp<int64_t>(begin - before, 0, gate_tiles) * kRowUnit;
        const int64_t last = std::min(f_, std::clamp<int64_t>(end - before, 0, gate_tiles) * kRowUnit);
        if (first < last) MultiplyIn(g, up ? m.up : m.gate, (up ? f_ : 0) + first, first, last);
      }
    });
  }

  // SwiGLU, rounded, in the forms that the down projections need.
  void MakeHidden() {
    ParallelFor(pool_, num_pairs_, /*grain=*/std::max<int64_t>(1, 8192 / std::max<int64_t>(f_, 1)),
                [&](int64_t begin, int64_t end, int) {
                  for (int64_t pair = begin; pair < end; ++pair) {
                    if (a_.experts.i32()[pair] == kNoExpert) {
                      std::fill_n(a_.outputs.f32() + pair * d_, d_, 0.0f);
                      continue;
                    }
                    float* gate = hidden_ + pair * 2 * f_;
                    SwigluRow(gate, gate + f_, f_, a_.limit, a_.weights.f32()[pair]);
                    const QuantTensor& down = a_.matrices[static_cast<size_t>(a_.experts.i32()[pair])].down;
                    if (RoundsFor(down)) RoundRow(a_, gate, gate, f_);
                    const int64_t place = s_.place[static_cast<size_t>(pair)];
                    if (TakesIntegers(down)) {
                      s_.integer_hidden.SetRow(place, gate);
                    } else if (!UsesTiles(down)) {
                      s_.hidden[OrderIndex(down)].SetRow(place, gate);
                    }
                  }
                });
    PlaceHiddenTiles();
  }

  // Rows [first, last) of the down projection of group g.
  void MultiplyOut(const Group& g, int64_t first, int64_t last) const {
    const QuantTensor& w = matrices_of(g).down;
    if (TakesIntegers(w)) {
      const IntegerProduct p{.w = &w, .activation = a_.activation, .x = s_.integer_hidden.rows() + g.begin};
      return MultiplyGroup(p, s_.out_rows, g, first, first, last);
    }
#ifdef DSV4_SIMD_AMX
    if (UsesTiles(w)) {
      const TilePanel* panel = &s_.hidden_tiles[OrderIndex(w)].panel(&g - s_.groups.data());
      return MultiplyGroup(TileProduct{.w = &w, .x = panel}, s_.out_rows, g, first, first, last);
    }
#endif
    const RowProduct p{.w = &w, .x = s_.hidden[OrderIndex(w)].rows() + g.begin};
    MultiplyGroup(p, s_.out_rows, g, first, first, last);
  }
  void MultiplyDown() {
    ForEachGroupTile(pool_, s_, CeilDiv(d_, kRowUnit), kRowUnit * f_, [&](const Group& g, int64_t begin, int64_t end) {
      MultiplyOut(g, begin * kRowUnit, std::min(d_, end * kRowUnit));
    });
  }

  void AddUp() const {
    const float* outputs = a_.outputs.f32();
    ParallelFor(pool_, num_tokens_, /*grain=*/std::max<int64_t>(1, 32768 / std::max<int64_t>(d_ * slots_, 1)),
                [&](int64_t begin, int64_t end, int) {
                  for (int64_t t = begin; t < end; ++t) {
                    const float* add = a_.shared.f32() + t * d_;
                    float* y = a_.y.f32() + t * d_;
                    if (add != y) std::copy_n(add, d_, y);
                    for (int64_t slot = 0; slot < slots_; ++slot) {
                      const float* out = outputs + (t * slots_ + slot) * d_;
                      for (int64_t c = 0; c < d_; ++c) y[c] += out[c];
                    }
                  }
                });
  }

  ThreadPool* const pool_;
  const ExpertsArgs& a_;
  Scratch& s_;
  const int64_t num_tokens_, d_, slots_, f_, num_pairs_;
  float* const hidden_;
  Wanted wanted_, wanted_hidden_;
};

}  // namespace

void ExpertsCpu(const ExecContext& ctx, const ExpertsArgs& a) {
  static thread_local Scratch scratch;
  Call(ctx, a, scratch).Run();
}

}  // namespace dsv4::DSV4_ISA
