// The model interface (model/model.h) of a bound DeepSeek-V4 model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/experts/expert_places.h"
#include "model/deepseek_v4/pass/forward.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

class BoundModel : public LoadedModel {
 public:
  // expert_bytes: size of one expert of every layer. homes: sources of the experts on the disk.
  BoundModel(Model model, ExpertPlacement placement, std::vector<int64_t> expert_bytes, ExpertHomes homes)
      : model_(std::move(model)),
        experts_(model_.weights, std::move(placement), std::move(expert_bytes), model_.config.num_experts,
                 std::move(homes)) {}

  const KvLayout& kv_layout() const override { return model_.kv_layout; }
  std::unique_ptr<StepMemory> MakeStepMemory(int64_t max_tokens, int64_t max_rows, Device& device) const override;
  void Plan(const ExecContext& ctx) override { PlanModel(ctx, &model_); }
  void Forward(const ExecContext& ctx, const StepView& step, StepMemory& memory, const Tensor& logits,
               const TakeLogits& take) const override;
  DraftFacts draft() const override { return model_.config.draft.facts(); }
  void Draft(const ExecContext& ctx, const StepView& step, int64_t place, StepMemory& memory, const Tensor& logits,
             const Tensor& confidence) const override;
  std::string ExchangeName(int64_t site) const override { return deepseek_v4::ExchangeName(model_.config, site); }
  std::string Describe() const override;
  void VisitBytes(const std::function<void(const void* data, int64_t bytes, float factor)>& visit) const override;
  int num_slices() const override { return model_.config.fixed_cuts > 0 ? model_.config.num_slices() : 0; }
  void VisitSlice(int slice, const std::function<void(const void*, int64_t, float)>& visit) const override;
  bool CountExperts(Device& device) override;
  bool UseHostExperts(Device& device, ExpertComputing how) override {
    return experts_.UseHost(device, how, 1 + model_.config.experts_per_token);
  }
  std::vector<ExpertSwap> BetterPlaces(std::span<const double> chosen, int64_t most) const override {
    return experts_.BetterPlaces(chosen, most);
  }
  int64_t BeginSwaps(std::span<const ExpertSwap> swaps) override { return experts_.BeginSwaps(swaps); }
  bool ContinueSwaps(Device& device) override { return experts_.ContinueSwaps(device); }
  void AskForCounts(Device& device) override { experts_.AskForCounts(device); }
  std::vector<uint64_t> CountsAskedFor(Device& device) override { return experts_.CountsAskedFor(device); }
  Result<ExpertUse> UseOfExperts(Device& device) const override { return experts_.Use(device); }
  double StepBytes(int64_t batch, int64_t context) const override;
  std::vector<LinearShape> LinearShapes() const override;

 private:
  Model model_;
  ExpertPlaces experts_;  // experts of model_
};

}  // namespace dsv4::deepseek_v4
