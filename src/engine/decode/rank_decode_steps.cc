#include "engine/decode/rank_decode_steps.h"

namespace dsv4 {

RankDecodeSteps::RankDecodeSteps(Ranks& ranks, int64_t vocab_size) : ranks_(ranks) {
  for (int r = 0; r < ranks.count(); ++r) steps_.push_back(std::make_unique<DecodeSteps>(ranks.runner(r), vocab_size));
}

Status RankDecodeSteps::Reserve() {
  for (int r = 0; r < ranks_.count(); ++r) {
    ranks_.runner(r).device().Bind();
    DSV4_RETURN_IF_ERROR(steps_[static_cast<size_t>(r)]->Reserve());
  }
  return {};
}

Status RankDecodeSteps::Begin(const Step& step, std::span<RankCaches* const> caches,
                              std::span<const DecodeSteps::Draw> draws) {
  DSV4_RETURN_IF_ERROR(ranks_.GiveViews(step, caches));
  return ranks_.Run([&](int r) { return steps_[static_cast<size_t>(r)]->Begin(ranks_.StepOf(r, step), draws); });
}

Status RankDecodeSteps::QueueModel(int64_t k) {
  return ranks_.RunRecorded(
      [this](int r) { return steps_[static_cast<size_t>(r)]->ModelRecordsNext(); },
      [this](int r) { steps_[static_cast<size_t>(r)]->PrepareModel(); },
      [this, k](int r) { return steps_[static_cast<size_t>(r)]->QueueModel(k), ranks_.runner(r).device().status(); });
}

Status RankDecodeSteps::QueueDraw(int64_t k) {
  return ranks_.Run([this, k](int r) {
    DecodeSteps& mine = *steps_[static_cast<size_t>(r)];
    if (r > 0) mine.TakeMasks(leader());
    mine.QueueDraw(k);
    return Status{};
  });
}

Result<std::span<const int32_t>> RankDecodeSteps::Wait(int64_t k) {
  return ranks_.WaitForSame([this, k](int r) { return steps_[static_cast<size_t>(r)]->Wait(k); });
}

}  // namespace dsv4
