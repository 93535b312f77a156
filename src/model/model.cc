#include "model/model.h"

#include <algorithm>

#include "base/check.h"
#include "model/deepseek_v4/open.h"

namespace dsv4 {

namespace {

template <typename T>
Tensor ViewOf(const std::vector<T>& v, DType dtype) {
  return {const_cast<T*>(v.data()), dtype, {static_cast<int64_t>(v.size())}};
}

}  // namespace

void LoadedModel::Draft(const ExecContext&, const StepView&, int64_t, StepMemory&, const Tensor&, const Tensor&) const {
  DSV4_CHECK(false, "the model has no draft module");
}

void Step::Add(std::span<const TokenId> ids, const SequenceView& view) {
  for (size_t i = 0; i < ids.size(); ++i) {
    tokens.push_back(ids[i]);
    positions.push_back(view.start + static_cast<int64_t>(i));
    sequence_of.push_back(static_cast<int32_t>(sequences.size()));
  }
  sequences.push_back(view);
}

int64_t Step::most_each() const {
  int64_t most = 0;
  for (const SequenceView& s : sequences) most = std::max(most, s.end - s.begin);
  return most;
}

StepView HostView(const Step& step) {
  return {.tokens = ViewOf(step.tokens, DType::kI32),
          .positions = ViewOf(step.positions, DType::kI64),
          .sequence_of = step.sequence_of.data(),
          .sequences = step.sequences.data(),
          .num_sequences = static_cast<int64_t>(step.sequences.size()),
          .logit_rows = ViewOf(step.logit_rows, DType::kI32),
          .most_each = step.most_each(),
          .keeps_drafts = step.keeps_drafts};
}

Result<std::unique_ptr<ModelSource>> OpenModel(const std::string& dir, const NumericsModes& modes, const Device& device,
                                               DraftModule draft, bool tight_experts) {
  return deepseek_v4::OpenCheckpoint(dir, modes, device, draft, tight_experts);
}

Result<std::unique_ptr<ModelSource>> OpenSyntheticModel(const SyntheticModel& model, const NumericsModes& modes,
                                                        const Device& device, DraftModule draft, bool tight_experts) {
  return deepseek_v4::OpenSynthetic(model, modes, device, draft, tight_experts);
}

Status WriteSyntheticModel(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                           const std::string& overflow, const std::function<bool(int64_t, int64_t)>& progress) {
  return deepseek_v4::WriteSynthetic(device, pool, model, dir, progress, {.overflow = overflow});
}

}  // namespace dsv4
