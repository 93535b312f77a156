#include "model/deepseek_v4/loaded_model.h"

#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/pass/draft.h"
#include "model/deepseek_v4/schema/expert_matrices.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

double MatrixBytes(const QuantTensor& m) {
  if (!m) return 0.0;
  const bool tiles = m.layout == WeightLayout::kTiles;
  return static_cast<double>(tiles ? PackedCodeBytes(m) + PackedScaleBytes(m) : FileBytes(m));
}

using VisitFn = std::function<void(const void*, int64_t, float)>;

// Visits the codes and scales of a matrix.
void VisitMatrix(const QuantTensor& m, const VisitFn& visit) {
  if (!m) return;
  visit(m.codes, PlacedCodeBytes(m), m.global_scale);
  // For a view into a grid of scales, begins at the scales of its own rows.
  const bool tiles = m.layout == WeightLayout::kTiles;
  const int64_t first = tiles ? 0 : m.scale_row_offset / kFp8BlockSize * FileScaleRowBytes(m);
  if (const int64_t bytes = PlacedScaleBytes(m); bytes > 0) visit(m.block_scale + first, bytes, 1.0f);
}

// The bytes of KV rows and index keys that one sequence's step reads.
double CacheBytes(const Model& model, int64_t context) {
  const Config& c = model.config;
  double bytes = 0;
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const LayerLayout& layer = model.kv_layout.layers[static_cast<size_t>(l)];
    double rows = static_cast<double>(std::min(context, c.window) * layer.window_row.row_bytes());
    if (layer.main.ratio != 0) {
      int64_t compressed = context / layer.main.ratio;
      if (layer.index.ratio != 0) {
        rows += static_cast<double>(compressed * layer.index.row.row_bytes());
        compressed = std::min(compressed, c.index_topk);
      }
      rows += static_cast<double>(compressed * layer.main.row.row_bytes());
    }
    bytes += rows;
  }
  return bytes;
}

}  // namespace

std::unique_ptr<StepMemory> BoundModel::MakeStepMemory(int64_t max_tokens, int64_t max_rows, Device& device) const {
  return std::make_unique<Activations>(model_.config, max_tokens, max_rows, &device);
}

void BoundModel::Forward(const ExecContext& ctx, const StepView& step, StepMemory& memory, const Tensor& logits,
                         const TakeLogits& take) const {
  deepseek_v4::Forward(ctx, model_, step, static_cast<Activations&>(memory), logits, take);
}

void BoundModel::Draft(const ExecContext& ctx, const StepView& step, int64_t place, StepMemory& memory,
                       const Tensor& logits, const Tensor& confidence) const {
  deepseek_v4::Draft(ctx, model_, step, place, static_cast<Activations&>(memory), logits, confidence);
}

std::string BoundModel::Describe() const {
  const Config& c = model_.config;
  std::string ratios;
  for (const int64_t r : c.compress_ratios) ratios += StrCat(ratios.empty() ? "" : ",", r);
  const std::string drafts = c.draft.stages == 0 ? "" : StrCat(", ", NameOf(c.draft.module), " of ", c.draft.stages);
  return StrCat(c.num_layers, " layers (", ratios, "), hidden ", c.hidden_size, ", vocabulary ", c.vocab_size, drafts);
}

void BoundModel::VisitBytes(const VisitFn& visit) const {
  const bool sliced = model_.config.fixed_cuts > 0;
  VisitNamedWeights(
      model_.weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (ref.expert >= 0 && ref.stage < 0) experts_.Bring(ref.layer, ref.expert);
        if (!sliced || !IsSliced(ref)) VisitMatrix(m, visit);
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t && (!sliced || !IsSliced(ref))) visit(t.data, t.num_bytes(), 1.0f);
      });
}

void BoundModel::VisitSlice(int slice, const VisitFn& visit) const {
  const auto k = static_cast<size_t>(slice);
  const auto visit_expert = [&](const ExpertWeights& e) {
    for (const auto m : kExpertMatrices) VisitMatrix(e.*m, visit);
  };
  for (const LayerWeights& layer : model_.weights.layers) {
    const HeadWeights& heads = layer.attn.slices[k];
    for (const QuantTensor* m : {&heads.q_b, &heads.o_a, &heads.o_b}) VisitMatrix(*m, visit);
    visit(heads.sink.data, heads.sink.num_bytes(), 1.0f);
    for (const ExpertWeights& e : layer.moe.slices[k].experts) visit_expert(e);
    visit_expert(layer.moe.slices[k].shared);
  }
}

bool BoundModel::CountExperts(Device& device) {
  if (!experts_.Count(device)) return false;
  model_.expert_chosen = experts_.chosen();
  model_.expert_passes = experts_.passes();
  return true;
}

double BoundModel::StepBytes(int64_t batch, int64_t context) const {
  const Config& c = model_.config;
  const int num_slices = c.num_slices();
  double all = 0, experts = 0;
  VisitNamedWeights(
      model_.weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        // Decode steps read the slices, not the whole copies.
        const bool read = ref.stage < 0 && ref.row->presence != WeightPresence::kRanks;
        if (read) all += TimesInRank(ref, num_slices) * MatrixBytes(m);
      },
      [](const WeightRef&, const Tensor&) {});
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const LayerWeights& layer = model_.weights.layers[static_cast<size_t>(l)];
    for (const ExpertWeights& e : layer.moe.experts)
      experts += num_slices * (MatrixBytes(e.gate) + MatrixBytes(e.up) + MatrixBytes(e.down));
  }
  const double share = static_cast<double>(c.experts_per_token) / static_cast<double>(c.num_experts);
  const double named = 1 - std::pow(1 - share, static_cast<double>(batch));
  const double weights = all - experts + experts * named - MatrixBytes(model_.weights.embed);
  return weights + static_cast<double>(batch) * CacheBytes(model_, context);
}

std::vector<LinearShape> BoundModel::LinearShapes() const {
  const Weights& w = model_.weights;
  std::vector<LinearShape> shapes;
  const auto add = [&shapes](const QuantTensor& m, int64_t groups = 1) {
    if (!m) return;
    const auto same = [&](const LinearShape& s) { return s.rows == m.rows && s.cols == m.cols && s.groups == groups; };
    if (std::none_of(shapes.begin(), shapes.end(), same)) shapes.push_back({m.rows, m.cols, groups});
  };
  for (const LayerWeights& layer : w.layers) {
    const AttentionWeights& a = layer.attn;
    for (const QuantTensor* m : {&a.q_a, &a.kv_proj, &a.q_b}) add(*m);
    add(a.o_a, model_.config.o_groups);
    add(a.o_b);
    for (const CompressorWeights* c : {&a.compressor, &a.indexer.compressor}) add(c->kv_proj), add(c->gate_proj);
    add(a.indexer.q_b), add(a.indexer.weights_proj);
    add(layer.moe.router);
    for (const auto m : kExpertMatrices) add(layer.moe.shared.*m);
  }
  for (const QuantTensor* m : {&w.draft.embed_proj, &w.draft.hidden_proj, &w.draft.main_proj, &w.draft.head}) add(*m);
  add(w.head);
  return shapes;
}

}  // namespace dsv4::deepseek_v4
