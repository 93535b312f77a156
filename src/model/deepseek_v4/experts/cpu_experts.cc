#include "model/deepseek_v4/experts/cpu_experts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/stopwatch.h"
#include "model/deepseek_v4/experts/expert_times.h"

namespace dsv4::deepseek_v4 {

class CpuExperts::Layer : public ExpertPartner {
 public:
  Layer(CpuExperts& all, int64_t l) : number(l), all_(all) {}
  bool Take(const ExecContext& ctx, const Tensor& x, const Tensor& chosen, const Tensor& weights, Left* left) override {
    return ctx.regime == Regime::kDecode && x.dim(0) <= kMostRows && all_.Take(*this, x, chosen, weights, left);
  }
  void Compute(const ExecContext& ctx, const MoeSettings& settings, const Tensor& sums) override {
    all_.Compute(ctx, *this, settings, sums);
  }
  const int64_t number;

 private:
  CpuExperts& all_;
};

std::unique_ptr<CpuExperts> CpuExperts::Open(Device& device, Weights& weights, const ExpertPlacement& placement,
                                             std::span<const int64_t> expert_bytes, int64_t slots,
                                             ExpertComputing how) {
  std::unique_ptr<CpuExperts> c(new CpuExperts(device, weights, placement, expert_bytes, how.by));
  const std::vector<int64_t> counts = placement.CountByLayer();
  for (size_t l = 0; l < counts.size(); ++l)
    c->layers_.push_back(counts[l] > 0 ? std::make_unique<Layer>(*c, static_cast<int64_t>(l)) : nullptr);
  if (!c->Allocate(slots)) return nullptr;
  if (how.by == ExpertCompute::kAuto &&
      !MeasureExperts(device, how.pool, weights, placement, expert_bytes, &c->per_byte_))
    return nullptr;
  return c;
}

CpuExperts::CpuExperts(Device& device, Weights& weights, const ExpertPlacement& placement,
                       std::span<const int64_t> expert_bytes, ExpertCompute by)
    : device_(device),
      weights_(weights),
      placement_(placement),
      expert_bytes_(expert_bytes.begin(), expert_bytes.end()),
      by_(by) {}
CpuExperts::~CpuExperts() { (void)device_.Synchronize(); }  // copies from staging_ are under way

ExpertPartner* CpuExperts::Of(int64_t layer) {
  const auto l = static_cast<size_t>(layer);
  return l < layers_.size() ? layers_[l].get() : nullptr;
}

bool CpuExperts::Allocate(int64_t slots) {
  const std::vector<ExpertWeights>& experts = weights_.layers.front().moe.experts;
  const int64_t rows = kMostRows * experts.front().gate.cols, pairs = kMostRows * slots;
  taken_.resize(experts.size()), rows_of_.resize(experts.size());
  compute_.Reserve(kMostRows, slots - 1, experts.front().gate.cols, experts.front().gate.rows);
  if (!staging_.Allocate(device_, (2 * rows + 4 * pairs) * 4) || !left_.Allocate(device_, 2 * pairs * 4)) return false;
  x_ = reinterpret_cast<float*>(staging_.data()), sums_ = x_ + rows, weights_in_ = sums_ + rows;
  ids_ = reinterpret_cast<int32_t*>(weights_in_ + pairs);
  left_out_ = reinterpret_cast<uint8_t*>(ids_ + pairs);
  return true;
}

int64_t CpuExperts::Choose(const Layer& layer, std::span<const int32_t> ids) {
  chosen_.clear();
  for (const int32_t e : ids) {
    if (e < 0 || static_cast<size_t>(e) >= rows_of_.size() || !placement_.OnHost(layer.number, e)) continue;
    if (rows_of_[static_cast<size_t>(e)]++ == 0) chosen_.push_back({.expert = e});
  }
  for (ChosenExpert& c : chosen_) c.rows = std::exchange(rows_of_[static_cast<size_t>(c.expert)], 0);
  if (by_ == ExpertCompute::kCpu) return static_cast<int64_t>(chosen_.size());
  const auto bytes = static_cast<double>(expert_bytes_[static_cast<size_t>(layer.number)]);
  return ShareOfCpu(chosen_, {per_byte_.link * bytes, per_byte_.cpu * bytes, per_byte_.row * bytes});
}

bool CpuExperts::Take(const Layer& layer, const Tensor& x, const Tensor& chosen, const Tensor& weights,
                      ExpertPartner::Left* left) {
  const auto pairs = static_cast<size_t>(chosen.num_elements());
  device_.DownloadLater(ids_, chosen.data, chosen.num_bytes());
  device_.DownloadLater(weights_in_, weights.data, weights.num_bytes());
  device_.DownloadLater(x_, x.data, x.num_bytes());
  if (!device_.Wait(device_.Mark()).ok()) return false;
  share_ = Choose(layer, {ids_, pairs});
  if (share_ == 0) return false;
  for (int64_t i = 0; i < share_; ++i) taken_[static_cast<size_t>(chosen_[static_cast<size_t>(i)].expert)] = 1;
  SplitChoices({ids_, pairs}, {weights_in_, pairs}, x.dim(0), taken_, &cpu_, &rest_);
  for (int64_t i = 0; i < share_; ++i) taken_[static_cast<size_t>(chosen_[static_cast<size_t>(i)].expert)] = 0;
  const auto bytes = static_cast<int64_t>(rest_.experts.size() * 4);
  if (bytes > 0) {
    std::memcpy(left_out_, rest_.experts.data(), static_cast<size_t>(bytes));
    std::memcpy(left_out_ + bytes, rest_.weights.data(), static_cast<size_t>(bytes));
    device_.Upload(left_.data(), left_out_, 2 * bytes);
  }
  const Shape shape{rest_.rows, rest_.slots};
  *left = {.experts = {left_.data(), DType::kI32, shape}, .weights = {left_.data() + bytes, DType::kF32, shape}};
  return true;
}

void CpuExperts::Compute(const ExecContext& ctx, const Layer& layer, const MoeSettings& settings, const Tensor& sums) {
  const Stopwatch computing;
  const Tensor x{x_, DType::kF32, sums.shape}, own{sums_, DType::kF32, sums.shape};
  compute_.Compute(ctx.pool, x, cpu_, weights_.layers[static_cast<size_t>(layer.number)].moe.experts, settings.limit,
                   settings.activation, own);
  use_.experts += share_;
  use_.bytes += static_cast<double>(share_ * expert_bytes_[static_cast<size_t>(layer.number)]);
  use_.seconds += computing.Seconds();
  device_.Upload(sums.data, sums_, sums.num_bytes());
}

}  // namespace dsv4::deepseek_v4
