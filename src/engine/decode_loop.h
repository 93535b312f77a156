// Engine::Decode where the device draws the tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "engine/rank_decode_steps.h"
#include "engine/session.h"
#include "model/model.h"

namespace dsv4 {

// Decodes several sequences until each has ended. One step is always queued behind the one whose tokens are awaited, so
// the device never waits for the host. What such a step appends for a sequence that turns out to have ended is not
// committed and does no harm: it overwrites the one window row and the one compressor slot that no later token reads,
// and a row that is written again when its position is. Where some sequence asks which tokens it may draw, the model
// runs ahead in the same way, and only the draw waits for the answer, which follows from the token before.
class DecodeLoop {
 public:
  // All outlive the loop. Items are checked: sessions of this engine, each once, with samplers of ours.
  DecodeLoop(RankDecodeSteps& steps, const ModelInfo& info, std::span<const DecodeItem> items, const TokenFn& on_token);

  // Errors as of Engine::Decode. Throws std::bad_alloc.
  Status Run();

 private:
  // One sequence that has not ended.
  struct Live {
    size_t item;
    SessionImpl* session;
    SamplerImpl* sampler;
    TokenId next;  // drawn, not yet appended
    int64_t drawn = 0;
    bool ended = false;
  };

  // Steps with the same sequences until one ends or a page table moves.
  Status RunTogether();
  Status SetUp();
  // Room for the step behind the one that is under way. False: the loop must be set up anew after that one.
  Result<bool> RoomForNext();
  Status QueueDraw(int64_t k);
  Result<bool> RunStep(int64_t k);
  // Takes the tokens of a step: true while every sequence goes on.
  Result<bool> Collect(int64_t k);
  Status Take(Live& live, int32_t drawn);

  RankDecodeSteps& steps_;
  const ModelInfo& info_;
  const std::span<const DecodeItem> items_;
  const TokenFn& on_token_;
  std::vector<Live> live_;
  Step step_;
  std::vector<RankCaches*> caches_;  // of step_'s sequences
};

}  // namespace dsv4
