#include "engine/drafting.h"

#include <utility>

#include "engine/lookup_drafter.h"
#include "engine/model_drafter.h"

namespace dsv4 {

Drafting::Drafting(const EngineOptions& options) : policy(options.draft_threshold) {
  if (options.speculate == Speculate::kOff) return;
  Use(std::make_unique<LookupDrafter>(), options);
}

void Drafting::UseModule(const EngineOptions& options, Ranks& ranks, int64_t vocab_size) {
  const DraftFacts facts = ranks.leader().model().draft();
  if (facts.module == DraftModule::kNone) return;
  Use(std::make_unique<ModelDrafter>(ranks, facts, vocab_size), options);
}

void Drafting::Use(std::unique_ptr<Drafter> with, const EngineOptions& options) {
  drafter = std::move(with);
  max_tokens = options.draft_tokens > 0 ? options.draft_tokens : drafter->max_tokens();
}

}  // namespace dsv4
