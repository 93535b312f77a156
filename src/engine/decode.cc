// Engine::Decode and the figures that measurements compare it with.
#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "dsv4/sampling.h"
#include "engine/engine_impl.h"
#include "model/deepseek_v4/visit_weights.h"

namespace dsv4 {

Status EngineImpl::Decode(std::span<const DecodeItem> items, const TokenFn& on_token) {
  struct Live {
    size_t item;
    TokenId next;
    int64_t drawn = 0;
    std::vector<float> logits = {};
  };
  std::vector<Live> live;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].sampler == nullptr) return InvalidArgument("a decode item has no sampler");
    if (items[i].max_tokens < 1) return InvalidArgument("a decode item asks for less than one token");
    live.push_back({.item = i, .next = items[i].first});
  }
  std::vector<StepItem> step;
  while (!live.empty()) {
    step.clear();
    for (Live& l : live) {
      step.push_back({.session = items[l.item].session, .tokens = {&l.next, 1}, .rows = LogitRows::kLast, .logits = &l.logits});
    }
    DSV4_RETURN_IF_ERROR(Step(step));
    for (Live& l : live) {
      const DecodeItem& item = items[l.item];
      DSV4_ASSIGN_OR_RETURN(const SampledToken token, item.sampler->Sample(l.logits));
      l.next = token.id;
      const bool stop = std::find(item.stop_ids.begin(), item.stop_ids.end(), token.id) != item.stop_ids.end();
      if (!on_token(l.item, token) || stop || ++l.drawn >= item.max_tokens) l.next = -1;
    }
    std::erase_if(live, [](const Live& l) { return l.next < 0; });
  }
  return {};
}

double EngineImpl::StepBytes(int64_t batch, int64_t context) const {
  const Config& c = model_.config;
  const auto matrix_bytes = [](const QuantTensor& m) {
    if (!m) return 0.0;
    double scales = 0;
    if (m.format == WeightFormat::kNvfp4) scales = static_cast<double>(m.cols) / kNvfp4BlockSize;
    if (m.format == WeightFormat::kMxfp4) scales = static_cast<double>(m.cols) / kMxfp4BlockSize;
    if (m.format == WeightFormat::kFp8Block) scales = static_cast<double>(m.cols) / (kFp8BlockSize * kFp8BlockSize);
    return static_cast<double>(m.rows) * (static_cast<double>(m.row_bytes()) + scales);
  };
  double all = 0, experts = 0;
  VisitWeights(
      model_.weights, [&](const QuantTensor& m, bool) { all += matrix_bytes(m); }, [](const Tensor&) {});
  for (const LayerWeights& layer : model_.weights.layers) {
    for (const ExpertWeights& e : layer.moe.experts) experts += matrix_bytes(e.gate) + matrix_bytes(e.up) + matrix_bytes(e.down);
  }
  const double share = static_cast<double>(c.experts_per_token) / static_cast<double>(c.num_experts);
  const double named = 1 - std::pow(1 - share, static_cast<double>(batch));
  double bytes = all - experts + experts * named - matrix_bytes(model_.weights.embed);
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const LayerLayout& layer = model_.kv_layout.layers[static_cast<size_t>(l)];
    double rows = static_cast<double>(std::min(context, c.window) * layer.window_row.row_bytes());
    if (layer.main.ratio != 0) {
      int64_t compressed = context / layer.main.ratio;
      if (layer.index.ratio != 0) {
        rows += static_cast<double>(compressed * layer.index.row.row_bytes());
        compressed = std::min(compressed, c.index_topk);
      }
      rows += static_cast<double>(compressed * layer.main.row.row_bytes());
    }
    bytes += static_cast<double>(batch) * rows;
  }
  return bytes;
}

Result<double> EngineImpl::MeasureReadRate() { return device_->MeasureReadRate(pool_.get()); }

}  // namespace dsv4
