// A bound model behind the seam's interface.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/expert_placement.h"
#include "model/deepseek_v4/expert_streams.h"
#include "model/deepseek_v4/forward.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

class BoundModel : public LoadedModel {
 public:
  // expert_bytes: of one expert of every layer.
  BoundModel(Model model, ExpertPlacement placement, std::vector<int64_t> expert_bytes)
      : model_(std::move(model)), placement_(std::move(placement)), expert_bytes_(std::move(expert_bytes)) {}

  const KvLayout& kv_layout() const override { return model_.kv_layout; }
  std::unique_ptr<StepMemory> MakeStepMemory(int64_t max_tokens, int64_t max_rows, Device& device) const override;
  void Plan(const ExecContext& ctx) override { PlanModel(ctx, &model_); }
  void Forward(const ExecContext& ctx, const StepView& step, StepMemory& memory, const Tensor& logits,
               const TakeLogits& take) const override;
  DraftFacts draft() const override {
    const DraftConfig& draft = model_.config.draft;
    return {draft.module, draft.most(), draft.rows()};
  }
  void Draft(const ExecContext& ctx, const StepView& step, int64_t place, StepMemory& memory, const Tensor& logits,
             const Tensor& confidence) const override;
  std::string ExchangeName(int64_t site) const override { return deepseek_v4::ExchangeName(model_.config, site); }
  std::string Describe() const override;
  void VisitBytes(const std::function<void(const void* data, int64_t bytes, float factor)>& visit) const override;
  bool CountExperts(Device& device) override;
  void StreamExperts(Device& device) override;
  std::vector<ExpertSwap> BetterPlaces(std::span<const double> chosen, int64_t most) const override {
    return deepseek_v4::BetterPlaces(placement_, chosen, model_.config.num_experts, most);
  }
  int64_t SwapExperts(Device& device, std::span<const ExpertSwap> swaps) override;
  Result<ExpertUse> UseOfExperts(Device& device) const override;
  double StepBytes(int64_t batch, int64_t context) const override;
  std::vector<LinearShape> LinearShapes() const override;

 private:
  // What passes have counted: expert_chosen, then expert_passes; zeros where they do not count.
  Result<std::vector<uint64_t>> Counters(Device& device) const;
  ExpertUse UseOf(std::span<const uint64_t> counters) const;

  Model model_;
  ExpertPlacement placement_;
  const std::vector<int64_t> expert_bytes_;
  std::unique_ptr<ExpertStreams> streams_;
  DeviceBuffer counters_;  // model_.expert_chosen, then model_.expert_passes
  HostBuffer swapped_;     // a matrix on its way
  // Until experts changed places last.
  struct {
    std::vector<uint64_t> counters;
    uint64_t chosen_resident = 0;
    double fetched_bytes = 0;  // without streams_'
  } past_;
  int64_t swaps_ = 0;
};

}  // namespace dsv4::deepseek_v4
