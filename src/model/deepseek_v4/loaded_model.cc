#include "model/deepseek_v4/loaded_model.h"

#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "model/deepseek_v4/draft.h"
#include "model/deepseek_v4/visit_weights.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

int64_t PlacedCodeBytes(const QuantTensor& m) {
  return m.layout == WeightLayout::kTiles ? PackedCodeBytes(m) : m.rows * m.row_bytes();
}
int64_t PlacedScaleBytes(const QuantTensor& m) {
  if (m.block_scale == nullptr) return 0;
  return m.layout == WeightLayout::kTiles ? PackedScaleBytes(m) : FileScaleBytes(m);
}

bool SizedAlike(const ExpertWeights& a, const ExpertWeights& b) {
  const auto alike = [](const QuantTensor& x, const QuantTensor& y) {
    return x.layout == y.layout && PlacedCodeBytes(x) == PlacedCodeBytes(y) &&
           PlacedScaleBytes(x) == PlacedScaleBytes(y) && x.scale_row_offset == 0 && y.scale_row_offset == 0;
  };
  return alike(a.gate, b.gate) && alike(a.up, b.up) && alike(a.down, b.down);
}

// By way of `between`, in the order of the device's work.
void SwapPlaces(Device& device, QuantTensor& a, QuantTensor& b, uint8_t* between) {
  const auto swap = [&](const uint8_t*& x, const uint8_t*& y, int64_t bytes) {
    device.CopyWithin(between, x, bytes);
    device.CopyWithin(const_cast<uint8_t*>(x), y, bytes);
    device.CopyWithin(const_cast<uint8_t*>(y), between, bytes);
    std::swap(x, y);
  };
  swap(a.codes, b.codes, PlacedCodeBytes(a));
  if (a.block_scale != nullptr) swap(a.block_scale, b.block_scale, PlacedScaleBytes(a));
}

double MatrixBytes(const QuantTensor& m) {
  if (!m) return 0.0;
  const bool tiles = m.layout == WeightLayout::kTiles;
  return static_cast<double>(tiles ? PackedCodeBytes(m) + PackedScaleBytes(m) : FileBytes(m));
}

// KV rows and index keys that one sequence's step reads.
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

void BoundModel::VisitBytes(const std::function<void(const void*, int64_t, float)>& visit) const {
  VisitWeights(
      model_.weights,
      [&](const QuantTensor& m, bool) {
        if (!m) return;
        const bool tiles = m.layout == WeightLayout::kTiles;
        visit(m.codes, tiles ? PackedCodeBytes(m) : m.rows * m.row_bytes(), m.global_scale);
        if (m.block_scale == nullptr) return;
        // Of a view into a grid of scales, those of its own rows.
        const int64_t first = m.scale_row_offset / kFp8BlockSize * FileScaleRowBytes(m);
        if (const int64_t bytes = tiles ? PackedScaleBytes(m) : FileScaleBytes(m); bytes > 0) {
          visit(m.block_scale + (tiles ? 0 : first), bytes, 1.0f);
        }
      },
      [&](const Tensor& t) {
        if (t) visit(t.data, t.num_bytes(), 1.0f);
      });
}

bool BoundModel::CountExperts(Device& device) {
  const int64_t l = model_.config.num_layers, e = model_.config.num_experts, bytes = 8 * l * e;
  if (!counters_.Allocate(device, 2 * bytes)) return false;
  device.Clear(counters_.data(), 2 * bytes);
  model_.expert_chosen = {counters_.data(), DType::kI64, {l, e}};
  model_.expert_passes = {counters_.data() + bytes, DType::kI64, {l, e}};
  return true;
}

void BoundModel::StreamExperts(Device& device) {
  streams_ = ExpertStreams::Open(device, model_.weights, placement_, expert_bytes_);
  if (streams_ == nullptr) return;
  for (int64_t l = 0; l < model_.config.num_layers; ++l)
    model_.weights.layers[static_cast<size_t>(l)].moe.fetched = streams_->Of(l);
}

int64_t BoundModel::SwapExperts(Device& device, std::span<const ExpertSwap> swaps) {
  Result<std::vector<uint64_t>> counters = Counters(device);
  if (!counters.ok()) return 0;
  int64_t bytes = 0;
  for (const LayerWeights& layer : model_.weights.layers) {
    const ExpertWeights& e = layer.moe.experts.front();
    for (const QuantTensor* m : {&e.gate, &e.up, &e.down})
      bytes = std::max({bytes, PlacedCodeBytes(*m), PlacedScaleBytes(*m)});
  }
  if (swapped_.bytes() == 0 && !swapped_.Allocate(device, bytes)) return 0;
  const ExpertUse use = UseOf(*counters);  // where they are until now
  past_ = {.counters = std::move(*counters), .chosen_resident = use.chosen_resident,
           .fetched_bytes = use.fetched_bytes};
  if (streams_ != nullptr) past_.fetched_bytes -= static_cast<double>(streams_->fetched_bytes());
  if (streams_ != nullptr) streams_->Forget();
  int64_t made = 0;
  for (const ExpertSwap& swap : swaps) {
    MoeWeights& moe = model_.weights.layers[static_cast<size_t>(swap.layer)].moe;
    ExpertWeights& in = moe.experts[static_cast<size_t>(swap.in)];
    ExpertWeights& out = moe.experts[static_cast<size_t>(swap.out)];
    if (!placement_.OnHost(swap.layer, swap.in) || placement_.OnHost(swap.layer, swap.out) || !SizedAlike(in, out))
      continue;
    for (QuantTensor ExpertWeights::* m : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down})
      SwapPlaces(device, in.*m, out.*m, swapped_.data());
    placement_.Swap(swap);
    if (moe.table != nullptr) {
      device.Upload(const_cast<ExpertWeights*>(moe.table + swap.in), &in, sizeof(in));
      device.Upload(const_cast<ExpertWeights*>(moe.table + swap.out), &out, sizeof(out));
    }
    if (streams_ != nullptr) streams_->Swap(device, swap, moe.experts);
    ++made;
  }
  swaps_ += made;
  return made;
}

Result<std::vector<uint64_t>> BoundModel::Counters(Device& device) const {
  std::vector<uint64_t> counters(2 * static_cast<size_t>(model_.config.num_layers * model_.config.num_experts));
  if (!model_.expert_chosen) return counters;
  device.Download(counters.data(), counters_.data(), counters_.bytes());
  DSV4_RETURN_IF_ERROR(device.Synchronize());
  return counters;
}

ExpertUse BoundModel::UseOf(std::span<const uint64_t> counters) const {
  const int64_t num_layers = model_.config.num_layers, num_experts = model_.config.num_experts;
  const auto n = static_cast<size_t>(num_layers * num_experts);
  ExpertUse use{.experts = num_layers * num_experts, .counted = static_cast<bool>(model_.expert_chosen)};
  const auto chosen = counters.first(use.counted ? n : 0);
  if (use.counted) use.counts = {num_layers, num_experts, {chosen.begin(), chosen.end()}};
  use.swaps = swaps_;
  use.chosen_resident = past_.chosen_resident;
  use.fetched_bytes = past_.fetched_bytes + (streams_ != nullptr ? static_cast<double>(streams_->fetched_bytes()) : 0);
  const auto since = [&](size_t at) { return counters[at] - (past_.counters.empty() ? 0 : past_.counters[at]); };
  for (size_t at = 0; at < n; ++at) {
    const auto l = static_cast<int64_t>(at) / num_experts, e = static_cast<int64_t>(at) % num_experts;
    const int64_t bytes = expert_bytes_[static_cast<size_t>(l)];
    use.chosen += counters[at];
    if (!placement_.OnHost(l, e)) {
      use.chosen_resident += since(at);
      continue;
    }
    ++use.on_host;
    use.host_bytes += bytes;
    use.fetched_bytes += static_cast<double>(since(n + at)) * static_cast<double>(bytes);
  }
  return use;
}

Result<ExpertUse> BoundModel::UseOfExperts(Device& device) const {
  DSV4_ASSIGN_OR_RETURN(const std::vector<uint64_t> counters, Counters(device));
  return UseOf(counters);
}

double BoundModel::StepBytes(int64_t batch, int64_t context) const {
  const Config& c = model_.config;
  double all = 0, experts = 0;
  VisitNamedWeights(
      model_.weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        // Decode's steps read what is cut.
        const bool read = ref.stage < 0 && ref.row->presence != WeightPresence::kRanks;
        if (read) all += MatrixBytes(m);
      },
      [](const WeightRef&, const Tensor&) {});
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const LayerWeights& layer = model_.weights.layers[static_cast<size_t>(l)];
    for (const ExpertWeights& e : layer.moe.experts)
      experts += MatrixBytes(e.gate) + MatrixBytes(e.up) + MatrixBytes(e.down);
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
    for (const QuantTensor* m : {&layer.moe.shared.gate, &layer.moe.shared.up, &layer.moe.shared.down}) add(*m);
  }
  for (const QuantTensor* m : {&w.draft.embed_proj, &w.draft.hidden_proj, &w.draft.main_proj}) add(*m);
  add(w.head);
  return shapes;
}

}  // namespace dsv4::deepseek_v4
