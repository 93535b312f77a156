#include "layers/plan_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/str.h"
#include "ops/compress/compress.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/stream_add/stream_add.h"
#include "ops/sum_ranks/sum_ranks.h"
#include "ops/swiglu/swiglu.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

// What runs in steps of the class, by their numbers of rows: "A", or "A; from 17 rows B".
template <typename Name>
std::string ByRows(StepClass step, const Name& name) {
  constexpr int64_t kMost = 128;  // told of those of decode rows
  const int64_t first = LeastRows(step),
                last = RegimeOf(step) == Regime::kDecode ? std::min(MostRows(step), kMost) : first;
  std::string now = name(first), all = now;
  for (int64_t rows = first + 1; rows <= last; ++rows) {
    if (std::string next = name(rows); next != now) {
      all += StrCat("; from ", rows, " rows ", next);
      now = std::move(next);
    }
  }
  return all;
}

// Of a linear whose call has these matrices.
std::string DescribeLinear(const ExecContext& ctx, StepClass step, const QuantTensor& w, Input input,
                           std::span<const QuantTensor> of_call, int64_t groups) {
  if (input == Input::kCodes)  // it says itself which shapes it has
    return StrCat("cuBLASLt, NVFP4 codes, otherwise with x rounded ", LinearImplementation(ctx, w, of_call, groups, 1),
                  "; ", NameOf(w.format));
  const std::string runs = ByRows(step,
                                  [&](int64_t rows) { return LinearImplementation(ctx, w, of_call, groups, rows); });
  return StrCat(runs, "; ", NameOf(w.format), input == Input::kRounded ? "; x rounded" : "");
}

// Lines of one layer, put together in order.
class Lines {
 public:
  Lines(const ExecContext& ctx, StepClass step, const LayerShape& l) : ctx_(ctx), step_(step), l_(l) {}

  std::vector<OpLine> Take() { return std::move(lines_); }

  void Attention(const AttentionPlan& p) {
    const AttentionWeights& w = *l_.attention;
    Bridge("attention", p.x);
    Linears({{"q_a", w.q_a, p.q_a},
             {"kv_proj", w.kv_proj, p.kv_proj},
             {"compressor kv_proj", w.compressor.kv_proj},
             {"compressor gate_proj", w.compressor.gate_proj},
             {"indexer kv_proj", w.indexer.compressor.kv_proj},
             {"indexer gate_proj", w.indexer.compressor.gate_proj},
             {"indexer weights_proj", w.indexer.weights_proj, p.index_weights}});
    Add("q_a_norm", p.expands ? "with q_prepare" : p.norms_along ? "with q_b" : DescribeRmsNorm(ctx_).chosen);
    if (p.expands) {
      Add("q_b", "with q_prepare");
      if (w.indexer.q_b) Add("indexer q_b", "with q_prepare");
    } else if (p.sliced) {  // q_b one by one
      Linears({{"q_b", w.q_b, p.q_b, p.queries}});
      Linears({{"indexer q_b", w.indexer.q_b, p.index_q_b}});
    } else {
      Linears({{"q_b", w.q_b, p.q_b, p.queries}, {"indexer q_b", w.indexer.q_b, p.index_q_b}});
    }
    const bool compresses = l_.cache.main.ratio != 0, indexes = l_.cache.index.ratio != 0;
    if (p.by_tokens) Add("gather_shares (keys)", DescribeGatherShares(ctx_).chosen);
    if (compresses) Add("compress", Appended(CompressImplementation(ctx_, /*one_each=*/false)));
    const ExpandShape shape = ExpandShapeOf(l_, MostRows(step_));
    const std::string prepares = QPrepareImplementation(ctx_, p.expands ? &shape : nullptr);
    const bool of_one = p.expands && step_ == StepClass::kFewRows;  // several sequences' rows are expanded apart
    Add("q_prepare",
        of_one ? StrCat(prepares, "; several sequences: ", QPrepareImplementation(ctx_, nullptr)) : prepares);
    if (indexes)
      Add("index_topk", IndexTopkImplementation(ctx_, MostRows(step_), l_.settings.index_heads, l_.cache.index));
    Add("sparse_attention", With(SparseAttentionImplementation(ctx_, AttentionShapeOf(l_)), p.heads, "out"));
    Add("window_append", Appended(DescribeWindowAppend(ctx_).chosen));
    Linears({{"o_a", w.o_a, p.rounds_heads ? Input::kRounded : Input::kAsIs, p.o_lora}}, l_.settings.o_groups);
    Linears({{"o_b", w.o_b, p.o_b}});
    if (p.sliced) Add("slices (attention)", StrCat("q_b to o_b one by one; ", DescribeStreamAdd(ctx_).chosen));
    SumRanks("attention", p.out);
  }

  void Moe(const MoePlan& p) {
    const MoeWeights& w = *l_.moe;
    Bridge("experts", p.x);
    if (p.router_multiplies) {
      Add("router matrix", "with router");
    } else {
      Linears({{"router matrix", w.router}});
    }
    Add("router", RouterImplementation(ctx_, p.router_multiplies));
    if (p.by_tokens) Add("gather_shares (experts)", With(DescribeGatherShares(ctx_).chosen, p.gathered, "x"));
    if (p.shared_is_routed) {
      Add("shared expert", "with experts");
    } else {
      Linears({{"shared gate", w.shared.gate, p.gate}, {"shared up", w.shared.up, p.up}});
      Add("swiglu", With(DescribeSwiglu(ctx_).chosen, p.hidden, "y"));
      Linears({{"shared down", w.shared.down, p.down}});
    }
    const auto num_experts = static_cast<int64_t>(w.experts.size()) + (p.shared_is_routed ? 1 : 0);
    const ExpertsShape shape = {.first = w.experts.front(),
                                .num_experts = num_experts,
                                .slots = l_.experts_per_token + (p.shared_is_routed ? 1 : 0),
                                .activation = l_.settings.activation,
                                .with_shared = p.shared_is_routed};
    const std::string experts = ByRows(step_, [&](int64_t rows) { return ExpertsImplementation(ctx_, shape, rows); });
    Add("experts",
        StrCat(experts, "; ", NameOf(w.experts.front().gate.format),
               p.out == Form::kSlots || p.out == Form::kSlotsForBridge ? "; summed by the next hc_bridge" : ""));
    if (p.sliced) Add("slices (experts)", StrCat("one by one; ", DescribeStreamAdd(ctx_).chosen));
    SumRanks("experts", p.out);
  }

 private:
  void Add(std::string op, std::string runs) { lines_.push_back({std::move(op), std::move(runs)}); }

  // What adds rows to a cache: in decode steps with q_prepare, but of texts that have more rows in a step than a cache
  // takes back, short prompts.
  std::string Appended(const std::string& after) const {
    if (ctx_.device == DeviceKind::kCpu || RegimeOf(step_) != Regime::kDecode) return after;
    return step_ == StepClass::kDecode ? StrCat("with q_prepare; short prompts: ", after) : "with q_prepare";
  }

  static std::string With(std::string runs, Form form, const char* of) {
    return form == Form::kFloats ? runs : StrCat(runs, "; ", of, " as ", NameOf(form));
  }

  void Bridge(const char* site, Form x) {
    Add(StrCat("hc_bridge (", site, ")"),
        With(HcBridgeImplementation(ctx_, MostRows(step_), l_.streams, l_.dim), x, "x"));
  }

  void SumRanks(const char* of, Form out) {
    if (out == Form::kRankParts) Add(StrCat("sum_ranks (", of, ")"), DescribeSumRanks(ctx_).chosen);
    if (out == Form::kPartsForBridge || out == Form::kSlotsForBridge)
      Add(StrCat("sum_ranks (", of, ")"), "with the next hc_bridge");
    if (out == Form::kPushedForBridge)
      Add(StrCat("sum_ranks (", of, ")"), "partials sent by o_b, summed by the next hc_bridge");
    if (out == Form::kRowParts)
      Add(StrCat("sum_ranks (", of, ")"), StrCat(DescribeSumRanks(ctx_).chosen, "; own rows"));
  }

  struct Named {
    const char* name;
    QuantTensor w;
    Input input = Input::kAsIs;
    Form y = Form::kFloats;
  };

  // One call; those without a weight are left out. What is rounded goes apart.
  void Linears(std::initializer_list<Named> linears, int64_t groups = 1) {
    std::vector<QuantTensor> as_is, rounded;
    for (const Named& l : linears) {
      if (l.w) (l.input == Input::kAsIs ? as_is : rounded).push_back(l.w);
    }
    for (const Named& l : linears) {
      const std::vector<QuantTensor>& call = l.input == Input::kAsIs ? as_is : rounded;
      if (l.w) Add(l.name, With(DescribeLinear(ctx_, step_, l.w, l.input, call, groups), l.y, "y"));
    }
  }

  const ExecContext& ctx_;
  const StepClass step_;
  const LayerShape& l_;
  std::vector<OpLine> lines_;
};

std::string StepsOf(const std::vector<StepClass>& steps) {
  if (steps.size() == kStepClasses.size()) return "all";
  const auto has = [&](StepClass s) { return std::find(steps.begin(), steps.end(), s) != steps.end(); };
  const int64_t few = MostRows(StepClass::kFewRows);
  std::vector<std::string> names;
  if (has(StepClass::kOneRow) && has(StepClass::kDecode)) {
    names.push_back(has(StepClass::kFewRows) ? "decode" : StrCat("decode except 2-", few, " rows"));
  } else if (has(StepClass::kDecode)) {
    names.push_back(StrCat("decode of ", has(StepClass::kFewRows) ? 2 : few + 1, " or more rows"));
  } else if (has(StepClass::kOneRow) || has(StepClass::kFewRows)) {
    names.push_back(has(StepClass::kFewRows) ? StrCat("decode of ", has(StepClass::kOneRow) ? 1 : 2, "-", few, " rows")
                                             : "decode of 1 row");
  }
  if (has(StepClass::kPrompt)) names.emplace_back("prompt");
  if (has(StepClass::kLongPrompt)) names.emplace_back("long prompt");
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
  return all;
}

// "all", the name of a set, or ranges.
std::string LayersOf(const std::set<size_t>& which, std::span<const PlannedLayer> layers) {
  if (which.size() == layers.size()) return "all";
  std::map<std::string, std::set<size_t>> sets;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const std::string& name : layers[l].sets) sets[name].insert(l);
  }
  for (const auto& [name, members] : sets) {
    if (members == which) return name;
  }
  std::string all;
  for (auto at = which.begin(); at != which.end();) {
    const size_t first = *at;
    size_t last = first;
    while (++at != which.end() && *at == last + 1) ++last;
    all += StrCat(all.empty() ? "" : ", ", first, last > first ? StrCat("-", last) : "");
  }
  return all;
}

using Runs = std::array<std::string, kStepClasses.size()>;  // "": the op is not there

// Classes that are alike are one line.
void AddSteps(const std::string& op, const std::string& layers, const Runs& runs, std::vector<PlannedOp>* lines) {
  std::array<bool, kStepClasses.size()> done{};
  for (size_t s = 0; s < runs.size(); ++s) {
    if (done[s] || runs[s].empty()) continue;
    std::vector<StepClass> steps;
    for (size_t other = s; other < runs.size(); ++other) {
      if (runs[other] == runs[s]) done[other] = true, steps.push_back(kStepClasses[other]);
    }
    lines->push_back({op, layers, StepsOf(steps), runs[s]});
  }
}

// An op's lines: layers that are alike in every class together, then classes that are alike.
void AddOp(const std::string& op, const std::map<size_t, Runs>& by_layer, std::span<const PlannedLayer> layers,
           std::vector<PlannedOp>* lines) {
  std::vector<std::pair<Runs, std::set<size_t>>> groups;
  for (const auto& [layer, runs] : by_layer) {
    auto at = std::find_if(groups.begin(), groups.end(), [&runs = runs](const auto& g) { return g.first == runs; });
    if (at == groups.end()) at = groups.insert(groups.end(), {runs, {}});
    at->second.insert(layer);
  }
  for (const auto& [runs, which] : groups) AddSteps(op, LayersOf(which, layers), runs, lines);
}

}  // namespace

std::string DescribeLinearRun(const ExecContext& ctx, StepClass step, const QuantTensor& w, Input input) {
  return DescribeLinear(ctx, step, w, input, {&w, 1}, 1);
}

std::vector<PlannedOp> DescribeBySteps(const std::string& op, const std::function<std::string(StepClass)>& runs) {
  Runs all;
  for (const StepClass step : kStepClasses) all[static_cast<size_t>(step)] = runs(step);
  std::vector<PlannedOp> lines;
  AddSteps(op, "", all, &lines);
  return lines;
}

std::vector<OpLine> DescribeLayer(const ExecContext& ctx, StepClass step, const LayerShape& layer,
                                  const LayerPlan& plan) {
  const ExecContext at = ContextOf(ctx, step);
  AttentionWeights all;
  const LayerShape taken = ShapeFor(plan.attention, layer, &all);
  Lines lines(at, step, taken);
  lines.Attention(plan.attention);
  lines.Moe(plan.moe);
  return lines.Take();
}

std::vector<PlannedOp> DescribeLayers(const ExecContext& ctx, std::span<const PlannedLayer> layers) {
  std::vector<std::string> order;  // of ops, as a layer that has all of them runs them
  std::map<std::string, std::map<size_t, Runs>> ops;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const StepClass step : kStepClasses) {
      size_t behind = 0;  // the op in front of this one in `order`
      for (OpLine& line : DescribeLayer(ctx, step, layers[l].shape, (*layers[l].plans)[static_cast<size_t>(step)])) {
        auto at = std::find(order.begin(), order.end(), line.op);
        if (at == order.end()) at = order.insert(order.begin() + static_cast<std::ptrdiff_t>(behind), line.op);
        behind = static_cast<size_t>(at - order.begin()) + 1;
        ops[line.op][l][static_cast<size_t>(step)] = std::move(line.runs);
      }
    }
  }
  std::vector<PlannedOp> lines;
  for (const std::string& op : order) AddOp(op, ops[op], layers, &lines);
  return lines;
}

}  // namespace dsv4
