// Engine::Decode in rounds, between which the host waits: drafts, a step that verifies them, draws.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/speculation.h"
#include "engine/decode/decode_loop.h"
#include "engine/drafts/drafted_loop.h"
#include "engine/drafts/drafting.h"
#include "engine/drafts/round_step.h"
#include "engine/sessions/live_item.h"

namespace dsv4 {

// A step verifies a draft: it computes the rows of a sequence's next token and of its drafted ones, and every row's
// token is drawn as the step that had it alone would, with the same random number and the same counts. While draw and
// draft agree the next row's token counts; the rows behind are taken back. So what is emitted does not depend on the
// drafts.
class RoundLoop {
 public:
  using MaxRowsFn = std::function<int64_t(int64_t sequences)>;

  // All outlive the loop; `live` are the items that go on. `max_rows`: of a step of so many sequences.
  RoundLoop(const ModelInfo& info, Drafting& drafting, std::span<const DecodeItem> items, const TokenFn& on_token,
            std::vector<LiveItem>& live, RoundStep& step, MaxRowsFn max_rows);

  // Where there is no draft to verify, `loop` decodes, whose steps follow each other without the host.
  void UseWithoutDrafts(DecodeLoop* loop) { plain_ = loop; }

  // Where drafts can be made without the host, and every sequence has as many, `loop` does rounds that follow each
  // other without it.
  void UseAhead(DraftedLoop* loop) { ahead_ = loop; }

  // Errors as of Engine::Decode.
  Status Run();

 private:
  // Makes the drafts that Ask began.
  Status Propose();
  Making making() const { return drafting_.drafter->makes_at_once() ? Making::kAtOnce : Making::kEach; }
  bool WantsDrafts() const;
  bool HasDrafts() const;
  bool KeepsDrafts() const;
  int64_t max_rows() const { return max_rows_(static_cast<int64_t>(live_.size())); }
  int64_t MostDrafts(const LiveItem& live) const;
  Status RunNext();
  Status RunPlain();
  // drafts_ without tokens, `most` of each as many as it may have.
  void BeginDrafts();
  // The next drafts begin, `most` of each as is worth while as far as is known. Whether there are to be any.
  bool Ask();
  // Cuts `most` of drafts_ to what is worth while. False: that is known once they are made.
  bool Foresee();
  // How many drafts each sequence has in rounds that need no host; 0: it is needed.
  int64_t DraftsAhead() const;
  Status RunAhead(int64_t drafts);
  Status RunRound();
  Status StepOnce();
  // Draws the tokens of live_[i]'s rows.
  Status Draw(size_t i);
  void Count(const Draft& draft, bool foreseen, const Verification& verified, int64_t gained, const DecodeItem& item);

  const ModelInfo& info_;
  Drafting& drafting_;
  const std::span<const DecodeItem> items_;
  const TokenFn& on_token_;
  std::vector<LiveItem>& live_;
  RoundStep& step_;
  const MaxRowsFn max_rows_;
  DecodeLoop* plain_ = nullptr;
  DraftedLoop* ahead_ = nullptr;
  std::vector<Draft> drafts_;                    // of live_
  bool foreseen_ = false;                        // Foresee has cut them
  double draft_seconds_ = 0, step_seconds_ = 0;  // of the last round
  bool was_round_ = false;                       // with drafts, what came last
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<RoundSequence> sequences_;
};

}  // namespace dsv4
