#include "engine/rank_decode_steps.h"

#include <algorithm>
#include <array>

#include "base/str.h"

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
  DSV4_RETURN_IF_ERROR(
      ranks_.PrepareTogether([this](int r) { return steps_[static_cast<size_t>(r)]->ModelRecordsNext(); },
                             [this](int r) { steps_[static_cast<size_t>(r)]->PrepareModel(); }));
  // A device that is known to have failed sends nothing: the others hear of it at once.
  return ranks_.Run(
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
  if (ranks_.count() == 1) return leader().Wait(k);
  std::array<std::span<const int32_t>, kMaxRanks> drawn;
  for (int r = 0; r < ranks_.count(); ++r) {
    const Result<std::span<const int32_t>> tokens = steps_[static_cast<size_t>(r)]->Wait(k);
    if (tokens.ok()) {
      drawn[static_cast<size_t>(r)] = *tokens;
    } else {
      ranks_.Fail(r, tokens.status());  // before status() blames it for what it did not send
    }
  }
  DSV4_RETURN_IF_ERROR(ranks_.status());
  for (int r = 1; r < ranks_.count(); ++r) {
    const auto [theirs, mine] = std::mismatch(drawn[0].begin(), drawn[0].end(), drawn[static_cast<size_t>(r)].begin());
    if (theirs == drawn[0].end()) continue;
    ranks_.Fail(r, Internal(StrCat("drew token ", *mine, " where rank 0 drew ", *theirs, "; please report this")));
    return ranks_.status();
  }
  return drawn[0];
}

void RankDecodeSteps::Synchronize() {
  for (int r = 0; r < ranks_.count(); ++r) (void)ranks_.runner(r).device().Synchronize();
}

}  // namespace dsv4
