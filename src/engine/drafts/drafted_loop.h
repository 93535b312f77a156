// Engine::Decode in rounds with drafts that follow each other without the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "engine/decode/rank_decode_steps.h"
#include "engine/drafts/drafted_steps.h"
#include "engine/drafts/drafter.h"
#include "engine/sessions/live_item.h"
#include "model/model.h"

namespace dsv4 {

// DraftedSteps on all ranks: the calls of one, queued when they return. Every rank draws the same.
class RankDraftedSteps {
 public:
  // `steps` outlives it.
  RankDraftedSteps(RankDecodeSteps& steps, int64_t vocab_size);

  Ranks& ranks() const { return ranks_; }
  Status Begin(const Step& step, std::span<RankCaches* const> caches, std::span<const DraftedSequence> sequences);
  bool RecordsNext() const;
  Status Queue(int64_t k);
  // Waits until every rank has run round k: its results (Ranks::WaitForSame).
  Result<std::span<const int32_t>> Wait(int64_t k);

 private:
  Ranks& ranks_;
  std::vector<std::unique_ptr<DraftedSteps>> steps_;
};

// One round is always queued behind the one whose tokens are awaited, so the device never waits for the host: every
// sequence has as many drafts in each round, and what a round accepts is known to the next one on the device. What a
// round does for a sequence that turns out to have ended is not committed: it lies behind the sequence's end, and rings
// have room for it (DraftedSteps::kMostRows).
class DraftedLoop {
 public:
  // A draft of live[i] that was verified, and how many tokens count because of it: one less than were accepted where
  // the last of these ends the sequence.
  using VerifiedFn = std::function<void(size_t i, const Verification& verified, int64_t gained)>;
  // Behind every round's tokens: what it took, and whether it did what a repeated one does not. True: the loop ends
  // behind the round that is queued by then. Of a round that lies behind every sequence's end nothing is said.
  using RoundFn = std::function<bool(double seconds, bool was_first)>;

  // All outlive the loop. Items and `live` as of DecodeLoop.
  DraftedLoop(RankDraftedSteps& steps, const ModelInfo& info, std::span<const DecodeItem> items,
              const TokenFn& on_token, std::vector<LiveItem>& live)
      : steps_(steps), info_(info), items_(items), on_token_(on_token), live_(live) {}

  // Whether rounds of so many drafts a sequence may follow each other: two of them at least, in one pass of the module.
  bool Takes(int64_t drafts) const;

  // Rounds until a sequence ends, has no room for one more, or its page table moves, or `on_round` says so. Errors as
  // of Engine::Decode; kResourceExhausted before the first round: nothing has changed.
  Status Run(int64_t drafts, Drafter& drafter, const VerifiedFn& on_verified, const RoundFn& on_round);

 private:
  bool HasRoom(const LiveItem& live, int64_t tokens) const;
  // Of the wider pass of a round, the module's or the step that verifies, which has `rows` a sequence.
  int64_t WidestPass(int64_t rows) const;
  Status SetUp(Drafter& drafter);
  // Room for the round behind the one that is under way. False: there is none.
  Result<bool> RoomForNext();
  // Round k to its end, with k + 1 queued behind it. False: the rounds end here.
  Result<bool> RunRound(int64_t k, const VerifiedFn& on_verified, const RoundFn& on_round);
  // Takes the tokens of a round, behind which another one is `queued`: true while every sequence goes on.
  Result<bool> Collect(int64_t k, bool queued, const VerifiedFn& on_verified);
  Status Take(size_t i, std::span<const int32_t> results, bool queued, const VerifiedFn& on_verified);

  RankDraftedSteps& steps_;
  const ModelInfo& info_;
  const std::span<const DecodeItem> items_;
  const TokenFn& on_token_;
  std::vector<LiveItem>& live_;
  int64_t rows_ = 0;  // of a sequence in a round
  Step step_;
  std::vector<RankCaches*> caches_;  // of step_'s sequences
};

}  // namespace dsv4
