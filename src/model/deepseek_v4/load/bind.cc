#include "model/deepseek_v4/load/bind.h"

#include <utility>

#include "base/str.h"
#include "model/deepseek_v4/load/bind_tensors.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {

namespace {

// Binds the routed experts of a layer, whose names begin with `block`, if the files have them stacked.
void BindStackedExperts(TensorBinder& in, const Letters& s, const std::string& block,
                        std::vector<ExpertWeights>& experts) {
  in.Forbid(StrCat(block, "ffn.experts.0.w1.weight"), "the experts are present twice, stacked and separate");
  for (const StackedExperts& stack : kStackedExperts) {
    const Shape one = kExpertWeights[stack.first].shape(s);
    const auto count = static_cast<int64_t>(stack.count);
    const auto views = in.Stack(StrCat(block, stack.official), s.E, count * one[0], one[1], count);
    for (size_t i = 0; i < views.size(); ++i) {
      const WeightRow& row = kExpertWeights[stack.first + i % stack.count];
      *row.field({.expert = &experts[i / stack.count]}).matrix = views[i];
    }
  }
}

void BindOne(TensorBinder& in, const Letters& s, const WeightRef& ref, const WeightField& to, const Shape& shape) {
  switch (ref.row->kind) {
    case WeightKind::kVector:
      *to.vector = in.Vector(ref.Stem(), shape);
      break;
    case WeightKind::kIds:
      *to.vector = in.Ids(ref.Stem(), shape[0], shape[1], s.E);
      break;
    case WeightKind::kEmbedding:
    case WeightKind::kMix:
      *to.matrix = in.PlainMatrix(ref.Stem(), shape[0], shape[1]);
      break;
    default:
      *to.matrix = in.Matrix(ref.Stem(), shape[0], shape[1]);
      break;
  }
}

}  // namespace

Result<Weights> BindWeights(const Config& config, std::shared_ptr<const TensorSource> source, BindReport* report,
                            const BindOptions& options) {
  TensorBinder in(std::move(source), options);
  Weights w;
  const Letters letters = LettersOf(config);
  int64_t stacked = -1;  // the layer whose experts have been bound together
  MakeWeights(config, w, [&](const WeightRef& ref, const WeightOwner& owner, const Shape& shape) {
    if (!ref.in_files() || (stacked >= 0 && ref.expert >= 0 && ref.layer == stacked)) return in.status().ok();
    if (ref.expert == 0 && in.Has(StrCat(ref.Block(), kStackedExperts.front().official, ".weight"))) {
      BindStackedExperts(in, letters, ref.Block(), owner.layer->moe.experts);
      stacked = ref.layer;
    } else {
      BindOne(in, letters, ref, ref.row->field(owner), shape);
    }
    return in.status().ok();
  });

  BindReport unwanted;
  DSV4_RETURN_IF_ERROR(in.Finish(config.draft.stages > 0, report != nullptr ? *report : unwanted));
  w.storage = in.storage();
  return w;
}

}  // namespace dsv4::deepseek_v4
