#include "model/deepseek_v4/load/bind.h"

#include <algorithm>
#include <utility>

#include "base/str.h"
#include "model/deepseek_v4/load/bind_tensors.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {

namespace {

// The tensor of several experts that has `row`.
const StackedExperts& StackOf(const WeightRow& row) {
  const auto index = static_cast<size_t>(&row - kExpertWeights.data());
  const auto has = [&](const StackedExperts& s) { return index >= s.first && index < s.first + s.count; };
  return *std::find_if(kStackedExperts.begin(), kStackedExperts.end(), has);
}

// Binds the matrices of `stack`, named `name`, of the routed experts of a layer, whose names begin with `block`.
void BindStack(TensorBinder& in, const Letters& s, const std::string& block, const StackedExperts& stack,
               const std::string& name, std::vector<ExpertWeights>& experts) {
  const auto rows = kExpertWeights.subspan(stack.first, stack.count);
  for (size_t e = 0; e < experts.size(); ++e) {
    for (const WeightRow& row : rows) in.ForbidBoth(StrCat(block, "ffn.experts.", e, ".", row.official), name);
  }
  const Shape one = rows.front().shape(s);
  const auto count = static_cast<int64_t>(stack.count);
  const auto views = in.Stack(name, s.E, count * one[0], one[1], count);
  for (size_t i = 0; i < views.size(); ++i)
    *rows[i % stack.count].field({.expert = &experts[i / stack.count]}).matrix = views[i];
}

void BindOne(TensorBinder& in, const Letters& s, const WeightRef& ref, const WeightField& to, const Shape& shape) {
  if (ref.row->official == "ffn.gate")
    in.ExpectExperts(ref.Stem(), ref.stage < 0 ? StrCat("layer ", ref.layer) : StrCat("mtp.", ref.stage), s.E);
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
  MakeWeights(config, w, [&](const WeightRef& ref, const WeightOwner& owner, const Shape& shape) {
    if (!ref.in_files()) return in.status().ok();
    if (ref.expert >= 0) {
      const StackedExperts& stack = StackOf(*ref.row);
      const std::string name = StrCat(ref.Block(), stack.name);
      if (in.Has(StrCat(name, ".weight"))) {
        const bool is_first = ref.expert == 0 && ref.row == &kExpertWeights[stack.first];
        if (is_first) BindStack(in, letters, ref.Block(), stack, name, owner.layer->moe.experts);
        return in.status().ok();
      }
    }
    BindOne(in, letters, ref, ref.row->field(owner), shape);
    return in.status().ok();
  });

  if (!in.missing().empty()) in.NameNearest(config);

  BindReport unwanted;
  DSV4_RETURN_IF_ERROR(in.Finish(config.draft.stages > 0, report != nullptr ? *report : unwanted));
  w.storage = in.storage();
  return w;
}

}  // namespace dsv4::deepseek_v4
