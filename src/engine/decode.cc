// Engine::Decode: tokens drawn on the device, or on the host between steps.
#include <new>

#include "dsv4/sampling.h"
#include "engine/decode/decode_loop.h"
#include "engine/drafts/drafted_loop.h"
#include "engine/drafts/round_loop.h"
#include "engine/engine_impl.h"
#include "engine/host_round.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sessions/check_ranks.h"
#include "ops/sample/sample.h"

namespace dsv4 {

Result<bool> EngineImpl::CanDrawOnDevice(std::span<const DecodeItem> items) const {
  bool can = !runner().on_host() && info_.vocab_size <= kMaxSampleVocab &&
             static_cast<int64_t>(items.size()) <= DecodeSteps::kMaxSequences &&
             runner().regimes().DecodeTogether(static_cast<int64_t>(items.size()));
  for (const DecodeItem& item : items) {
    if (item.sampler == nullptr) return InvalidArgument("a decode item has no sampler");
    if (item.max_tokens < 1) return InvalidArgument("a decode item requests less than one token");
    const auto* sampler = dynamic_cast<SamplerImpl*>(item.sampler);
    can = can && sampler != nullptr && sampler->params().top_logprobs < 0 &&
          sampler->params().logit_bias.size() <= SamplerTables::kMaxBiased;
  }
  return can;
}

Status EngineImpl::Decode(std::span<const DecodeItem> items, const TokenFn& on_token) {
  DSV4_RETURN_IF_ERROR(health());
  DSV4_ASSIGN_OR_RETURN(const bool on_device, CanDrawOnDevice(items));
  return on_device ? DecodeOnDevice(items, on_token) : DecodeOnHost(items, on_token);
}

Status EngineImpl::DecodeOnHost(std::span<const DecodeItem> items, const TokenFn& on_token) try {
  const PoolUse use(&pool());  // also covers the draws
  std::vector<LiveItem> live = LiveItemsOf(items);
  HostRound step(*this);
  const auto max_rows = [this](int64_t sequences) { return runner().RowsAlike(sequences); };
  return RoundLoop(info_, drafting_, items, on_token, live, step, max_rows).Run();
} catch (const std::bad_alloc&) {
  return ResourceExhausted("no memory to draw a step's tokens; use fewer sequences");
}

Status EngineImpl::DecodeOnDevice(std::span<const DecodeItem> items, const TokenFn& on_token) {
  for (size_t i = 0; i < items.size(); ++i) {
    auto* session = dynamic_cast<SessionImpl*>(items[i].session);
    if (session == nullptr || &session->owner() != this) {
      return InvalidArgument("a decode item's session is missing or belongs to another engine");
    }
    for (size_t other = 0; other < i; ++other) {
      if (items[other].session == items[i].session)
        return InvalidArgument("a session appears twice among the decode items");
    }
  }
  try {
    std::vector<LiveItem> live = LiveItemsOf(items);
    const TokenFn taken = [&](size_t item, const SampledToken& token) {
      repicker_.Look(*ranks_);
      return on_token(item, token) && !stopped_;
    };
    DecodeLoop loop(*decode_steps_, info_, items, taken, live);
    const auto max_rows = [](int64_t) { return DeviceRound::kMaxRows; };
    RoundLoop rounds(info_, drafting_, items, taken, live, *device_round_, max_rows);
    rounds.UseWithoutDrafts(&loop);
    DraftedLoop ahead(*drafted_steps_, info_, items, taken, live);
    rounds.UseAhead(&ahead);
    std::vector<WrittenRows> written;
    for (size_t i = 0; options_.ranks.check && i < items.size(); ++i) {
      auto* session = static_cast<SessionImpl*>(items[i].session);
      written.push_back({&session->caches(), static_cast<int64_t>(session->tokens().size())});
    }
    DSV4_RETURN_IF_ERROR(CheckStopped());
    DSV4_RETURN_IF_ERROR(drafting_.drafter == nullptr ? loop.Run() : rounds.Run());
    DSV4_RETURN_IF_ERROR(CheckStopped());
    if (!options_.ranks.check) return {};
    for (size_t i = 0; i < items.size(); ++i)
      written[i].end = static_cast<int64_t>(static_cast<SessionImpl*>(items[i].session)->tokens().size());
    return CheckRanks(*ranks_, *memory_, written);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for this step; use fewer sequences");
  }
}

}  // namespace dsv4
