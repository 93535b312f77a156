// Measures rounds with drafts when a model is loaded.
#include <utility>

#include "dsv4/sampling.h"
#include "engine/engine_impl.h"

namespace dsv4 {

namespace {

// The drafts of another drafter, which does not learn from their acceptance.
class UnheardDrafter : public Drafter {
 public:
  explicit UnheardDrafter(Drafter& inner) : inner_(inner) {}
  int64_t max_tokens() const override { return inner_.max_tokens(); }
  bool is_free() const override { return inner_.is_free(); }
  Status Propose(std::span<Draft> drafts) override { return inner_.Propose(drafts); }
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    return inner_.Foresees(tokens, confidence);
  }
  bool makes_at_once() const override { return inner_.makes_at_once(); }
  bool was_first() const override { return inner_.was_first(); }

 private:
  Drafter& inner_;
};

bool GoOn(size_t /*item*/, const SampledToken& /*token*/) { return true; }

// Decodes up to `tokens` tokens after a text of one repeated token, which lookup finds again.
Status DecodeSome(Engine& engine, Session& session, bool speculate, int64_t tokens, const TokenFn& on_token = GoOn) {
  constexpr TokenId kText[] = {0, 0, 0, 0};
  session.Reset();
  DSV4_RETURN_IF_ERROR(session.Append(kText, LogitRows::kNone, nullptr));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Sampler> sampler,
                        Sampler::Create({.temperature = 0}, engine.info().vocab_size));
  const DecodeItem item{
      .session = &session, .sampler = sampler.get(), .first = 0, .max_tokens = tokens, .speculate = speculate};
  return engine.Decode({&item, 1}, on_token);
}

// Decodes rounds of `drafts` drafts that follow each other without the host: one records, one is measured.
Status DecodeAhead(Engine& engine, Session& session, Drafting& drafting, int64_t drafts) {
  constexpr int64_t kRounds = 2;
  drafting.max_tokens = drafts;
  const int64_t steps = drafting.counts.steps + kRounds;
  return DecodeSome(engine, session, true, (kRounds + 2) * (drafts + 1),  // memory for one round after the next
                    [&](size_t, const SampledToken&) { return drafting.counts.steps < steps; });
}

// Leaves drafting.max_tokens changed.
Status DecodeEachWay(Engine& engine, Drafting& drafting) {
  constexpr int64_t kPlain = 8;
  constexpr int kRuns = 2;  // the first run records
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine.NewSession());
  DSV4_RETURN_IF_ERROR(DecodeSome(engine, *session, false, kPlain));
  const int64_t most = std::exchange(drafting.max_tokens, 0);
  DSV4_RETURN_IF_ERROR(DecodeSome(engine, *session, true, kPlain));  // keeps the data that the module reads
  for (int64_t drafts = 1; drafts <= most; ++drafts) {
    drafting.max_tokens = most;
    for (int run = 0; run < kRuns; ++run) DSV4_RETURN_IF_ERROR(DecodeSome(engine, *session, true, drafts + 1));
    if (drafting.MayRunAhead(drafts)) DSV4_RETURN_IF_ERROR(DecodeAhead(engine, *session, drafting, drafts));
  }
  return {};
}

}  // namespace

Status EngineImpl::MeasureDrafts() {
  if (drafting_.drafter == nullptr) return {};
  std::unique_ptr<Drafter> drafter = std::move(drafting_.drafter);
  drafting_.drafter = std::make_unique<UnheardDrafter>(*drafter);
  drafting_.UsePolicy(0);  // verifies all drafts
  const int64_t most = drafting_.max_tokens;
  const Status status = DecodeEachWay(*this, drafting_);
  drafting_.max_tokens = most;
  drafting_.UsePolicy();
  drafting_.drafter = std::move(drafter);
  drafting_.counts = {};
  return status.code() == StatusCode::kResourceExhausted ? Status{} : status;
}

}  // namespace dsv4
