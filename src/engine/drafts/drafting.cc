#include "engine/drafts/drafting.h"

#include <utility>

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
  Use(std::make_unique<ModelDrafter>(ranks, facts, vocab_size));
  uses_module_ = true;
}

void Drafting::CloseModule() {
  if (uses_module_) drafter.reset();
  uses_module_ = false;
}

void Drafting::Use(std::unique_ptr<Drafter> with) {
  drafter = std::move(with);
  max_tokens = wanted_tokens_ > 0 ? wanted_tokens_ : drafter->max_tokens();
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
