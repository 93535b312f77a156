// Visits a model's weights in the order of schema.h's tables.
#pragma once

#include <type_traits>

#include "model/deepseek_v4/schema/schema.h"

namespace dsv4::deepseek_v4 {

namespace internal {

// Calls visit(const WeightRef&, const WeightOwner&) for each of `rows`, until it returns false. A nested row is visited
// before its contents.
template <typename Visit>
bool VisitRows(std::span<const WeightRow> rows, const WeightRef& at, const WeightOwner& owner, const Visit& visit) {
  for (const WeightRow& row : rows) {
    if (!IsOfStage(row.presence, at.stage, owner.model->draft_stages)) continue;
    if (!visit(WeightRef{&row, at.layer, at.expert, at.stage}, owner)) return false;
    if (row.kind == WeightKind::kLayers) {
      for (int64_t l = 0; l < owner.model->num_layers(); ++l) {
        LayerWeights& layer = owner.model->layers[static_cast<size_t>(l)];
        if (!VisitRows(kLayerWeights, {&row, l}, {owner.model, &layer}, visit)) return false;
      }
    } else if (row.kind == WeightKind::kStages) {
      for (int64_t s = 0; s < owner.model->draft_stages; ++s) {
        const WeightRef stage{.row = &row, .layer = owner.model->num_layers() + s, .stage = s};
        const WeightOwner of{owner.model, &owner.model->layers[static_cast<size_t>(stage.layer)]};
        if (!VisitRows(kLayerWeights, stage, of, visit)) return false;
        if (!VisitRows(kStageWeights, stage, of, visit)) return false;
      }
    } else if (row.kind == WeightKind::kExperts) {
      int64_t e = 0;
      for (ExpertWeights& expert : owner.layer->moe.experts) {
        const WeightOwner of{owner.model, owner.layer, &expert};
        if (!VisitRows(kExpertWeights, {&row, at.layer, e++, at.stage}, of, visit)) return false;
      }
    }
  }
  return true;
}

}  // namespace internal

// Calls matrix(const WeightRef&, QuantTensor&) and vector(const WeightRef&, Tensor&) for all weights in `w`, including
// absent ones. W: Weights or const Weights.
template <typename W, typename Matrix, typename Vector>
void VisitNamedWeights(W& w, const Matrix& matrix, const Vector& vector) {
  using M = std::conditional_t<std::is_const_v<W>, const QuantTensor, QuantTensor>;
  using V = std::conditional_t<std::is_const_v<W>, const Tensor, Tensor>;
  const auto visit = [&](const WeightRef& ref, const WeightOwner& owner) {
    if (IsNested(ref.row->kind)) return true;
    const WeightField field = ref.row->field(owner);
    if (field.matrix != nullptr) matrix(ref, static_cast<M&>(*field.matrix));
    if (field.vector != nullptr) vector(ref, static_cast<V&>(*field.vector));
    return true;
  };
  internal::VisitRows(kModelWeights, {}, {.model = const_cast<Weights*>(&w)}, visit);
}

// The same without names: matrix(QuantTensor&, keep_rows), vector(Tensor&). keep_rows: kernels of every device read it
// by rows.
template <typename W, typename Matrix, typename Vector>
void VisitWeights(W& w, const Matrix& matrix, const Vector& vector) {
  VisitNamedWeights(
      w, [&](const WeightRef& ref, auto& m) { matrix(m, KeepsRows(ref.row->kind)); },
      [&](const WeightRef&, auto& v) { vector(v); });
}

// Makes layers and experts in the empty `w` and calls fill(const WeightRef&, const WeightOwner&, const Shape&) for
// every weight of a model of `config`, until it returns false. The experts of a layer are made when they are reached.
template <typename Fill>
void MakeWeights(const Config& config, Weights& w, const Fill& fill) {
  const auto visit = [&](const WeightRef& ref, const WeightOwner& owner) {
    const WeightRow& row = *ref.row;
    if (row.kind == WeightKind::kLayers) {
      owner.model->layers.resize(static_cast<size_t>(config.num_layers + config.draft.stages));
      owner.model->draft_stages = config.draft.stages;
    }
    if (row.kind == WeightKind::kExperts) owner.layer->moe.experts.resize(static_cast<size_t>(config.num_experts));
    if (IsNested(row.kind) || !IsPresent(row.presence, config, ref.layer)) return true;
    return fill(ref, owner, row.shape(ref.layer < 0 ? LettersOf(config) : LettersOf(config, ref.layer)));
  };
  internal::VisitRows(kModelWeights, {}, {.model = &w}, visit);
}

}  // namespace dsv4::deepseek_v4
