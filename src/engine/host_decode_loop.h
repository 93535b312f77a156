// Engine::Decode where tokens are drawn on the host, between steps, with drafts or without.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/speculation.h"
#include "engine/drafting.h"
#include "engine/session.h"

namespace dsv4 {

// A step verifies a draft: it computes the rows of a sequence's next token and of its drafted ones, and every row's
// token is drawn as the step that had it alone would, with the same random number and the same counts. While draw and
// draft agree the next row's token is drawn; the rows behind are taken back. So what is emitted does not depend on the
// drafts.
class HostDecodeLoop {
 public:
  // All outlive the loop. Items' sessions are of `engine`, each once, wherever they are sessions at all.
  HostDecodeLoop(EngineImpl& engine, Drafting& drafting, std::span<const DecodeItem> items, const TokenFn& on_token);

  // Errors as of Engine::Decode.
  Status Run();

 private:
  // One sequence that has not ended.
  struct Live {
    size_t item;
    TokenId next;  // drawn, not yet appended
    int64_t drawn = 0;
    std::vector<TokenId> tokens = {};  // of the step: next, then the draft
    std::vector<float> logits = {};
  };

  Status Propose();
  int64_t MostDrafts(const Live& live) const;
  Status StepWithDrafts();
  Status StepOnce();
  // Draws the tokens of the step that is over.
  Status Draw(Live& live, Draft& draft);
  void Count(const Draft& draft, int64_t position, int64_t accepted, const DecodeItem& item);

  EngineImpl& engine_;
  Drafting& drafting_;
  const std::span<const DecodeItem> items_;
  const TokenFn& on_token_;
  std::vector<Live> live_;
  std::vector<Draft> drafts_;  // of live_
  std::vector<StepItem> step_;
};

}  // namespace dsv4
