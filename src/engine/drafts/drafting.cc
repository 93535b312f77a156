#include "engine/drafts/drafting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/drafts/drafted_steps.h"
#include "engine/drafts/lookup_drafter.h"
#include "engine/drafts/model_drafter.h"
#include "engine/drafts/oracle_drafter.h"

namespace dsv4 {

Drafting::Drafting(const DraftOptions& options)
    : policy(options.threshold), threshold_(options.threshold), wanted_tokens_(options.tokens) {
  if (options.speculate != Speculate::kOff) Use(std::make_unique<LookupDrafter>());
}

void Drafting::UseModule(Ranks& ranks, int64_t vocab_size) {
  const DraftFacts facts = ranks.leader().model().draft();
  if (facts.module == DraftModule::kNone) return;
  most_tokens_ = std::min(facts.most, kMaxDraftTokens);
  Use(std::make_unique<ModelDrafter>(ranks, facts, vocab_size));
  uses_module_ = true;
}

void Drafting::CloseModule() {
  if (uses_module_) drafter.reset();
  uses_module_ = false;
}

void Drafting::Use(std::unique_ptr<Drafter> with) {
  drafter = std::move(with);
  max_tokens = wanted_tokens_ > 0 ? std::min(wanted_tokens_, most_tokens_) : drafter->max_tokens();
}

bool Drafting::MayRunAhead(int64_t drafts) const {
  std::vector<float> confidence;
  // What is made at once and held against a threshold the host has to see.
  return drafts < DraftedSteps::kMostRows && !(drafter->makes_at_once() && threshold_ > 0) &&
         drafter->Foresees(drafts, &confidence);
}

void Drafting::UsePolicy(float threshold) {
  const DraftPolicy before = policy;
  policy = DraftPolicy(threshold);
  policy.TakeTimes(before);
}

void Drafting::Replace(KnownDrafts known, int64_t vocab_size) {
  std::unique_ptr<Drafter> own = std::move(drafter);
  if (auto* oracle = dynamic_cast<OracleDrafter*>(own.get())) own = oracle->TakeInner();
  UsePolicy(known.tokens > 0 ? 0 : threshold_);
  if (known.texts.empty()) return Use(std::move(own));
  const int64_t tokens = known.tokens;
  Use(std::make_unique<OracleDrafter>(std::move(own), std::move(known), vocab_size));
  if (tokens > 0) max_tokens = tokens;
}

}  // namespace dsv4
