// Engine::Decode where the device draws the tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "engine/decode/rank_decode_steps.h"
#include "engine/sessions/live_item.h"
#include "model/model.h"

namespace dsv4 {

// Pages for `tokens` tokens of a sequence. False: a page table has moved.
Result<bool> ReserveInPlace(RankCaches& caches, int64_t tokens);

// Decodes several sequences until each has ended. One step is always queued behind the one whose tokens are awaited, so
// the device never waits for the host. What such a step appends for a sequence that turns out to have ended is not
// committed and does no harm: it overwrites the one window row and the one compressor slot that no later token reads,
// and a row that is written again when its position is. Where some sequence asks which tokens it may draw, the model
// runs ahead in the same way, and only the draw waits for the answer, which follows from the token before.
class DecodeLoop {
 public:
  // All outlive the loop. Items are checked: sessions of this engine, each once, with samplers of ours; `live` are
  // those of them that go on.
  DecodeLoop(RankDecodeSteps& steps, const ModelInfo& info, std::span<const DecodeItem> items, const TokenFn& on_token,
             std::vector<LiveItem>& live);

  // Whether steps keep what a draft module reads later; they do without this.
  void KeepDrafts(bool keeps) { step_.keeps_drafts = keeps; }

  // Until none is live or `pause` says so, which is asked behind every step's tokens: one more step is queued by then,
  // and ends first. Errors as of Engine::Decode. Throws std::bad_alloc.
  Status Run(const std::function<bool()>& pause = {});

 private:
  // Steps with the same sequences until one ends, a page table moves or `pause` says so.
  Status RunTogether();
  Status SetUp();
  // Room for the step behind the one that is under way. False: the loop must be set up anew after that one.
  Result<bool> RoomForNext();
  Status QueueDraw(int64_t k);
  Result<bool> RunStep(int64_t k);
  // Takes the tokens of a step: true while every sequence goes on.
  Result<bool> Collect(int64_t k);
  Status Take(LiveItem& live, int32_t drawn);

  RankDecodeSteps& steps_;
  const ModelInfo& info_;
  const std::span<const DecodeItem> items_;
  const TokenFn& on_token_;
  std::vector<LiveItem>& live_;
  std::function<bool()> pause_;
  bool paused_ = false;
  Step step_;
  std::vector<RankCaches*> caches_;  // of step_'s sequences
};

}  // namespace dsv4
