#include "engine/drafts/model_drafter.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "engine/sampling/sampler_tables.h"
#include "engine/setup/options.h"

namespace dsv4 {

namespace {

constexpr int64_t kMostRows = 128;  // of a pass of the module
constexpr int64_t kMostSeen = 32;   // that count in a place's share

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

ModelDrafter::ModelDrafter(Ranks& ranks, const DraftFacts& facts, int64_t vocab_size)
    : ranks_(ranks),
      greedy_({.temperature = 0}, vocab_size, 0),
      facts_(facts),
      vocab_size_(vocab_size),
      most_(std::min(facts.most, kMaxDraftTokens)) {
  const bool on_device = !ranks.leader().on_host() && vocab_size <= kMaxSampleVocab;
  for (int r = 0; on_device && r < ranks.count(); ++r) chains_.push_back(std::make_unique<DraftChain>(ranks.runner(r)));
}

Status ModelDrafter::Propose(std::span<Draft> drafts) {
  std::vector<Draft*> wanted;
  was_first_ = false;
  for (Draft& draft : drafts) {
    if (draft.most > 0 && draft.session != nullptr && !draft.session->tokens().empty()) wanted.push_back(&draft);
  }
  const auto at_once = static_cast<size_t>(std::max<int64_t>(1, kMostRows / facts_.rows));
  try {
    for (size_t i = 0; i < wanted.size(); i += at_once)
      DSV4_RETURN_IF_ERROR(ProposeSome(std::span(wanted).subspan(i, std::min(at_once, wanted.size() - i))));
  } catch (const std::bad_alloc&) {  // then there are fewer drafts
  }
  return {};
}

Status ModelDrafter::ProposeSome(std::span<Draft* const> drafts) {
  rows_.clear(), caches_.clear();
  int64_t places = 0;
  for (Draft* draft : drafts) {
    draft->tokens.reserve(kMaxDraftTokens), draft->confidence.reserve(kMaxDraftTokens);
    SamplerImpl& sampler = draft->sampler != nullptr ? *draft->sampler : greedy_;
    rows_.push_back({.draft = draft, .sampler = &sampler, .num_seen = sampler.num_seen(), .last = draft->next});
    caches_.push_back(&draft->session->caches());
    places = std::max(places, std::min(chains_.empty() ? draft->most : std::max(draft->most, draft->longest), most_));
  }
  const auto rows = static_cast<int64_t>(rows_.size()) * facts_.rows;
  ranks_.Reserve(rows, rows);
  return chains_.empty() ? DraftOnHost(places) : DraftOnDevice(places);
}

void ModelDrafter::MakeStep(int64_t place) {
  step_.Clear();
  for (const Row& row : rows_) {
    const auto s = static_cast<int64_t>(step_.tokens.size());
    const int64_t position = static_cast<int64_t>(row.draft->session->tokens().size()) + place;
    step_.Add({&row.last, 1}, row.draft->session->cache().View(position, s, s + 1));
  }
}

Status ModelDrafter::DraftOnHost(int64_t places) {
  struct Restored {  // also where there is no memory
    std::span<const Row> rows;
    ~Restored() {
      for (const Row& row : rows) row.sampler->TakeBack(row.draft->tokens, row.num_seen);
    }
  } const restored{rows_};
  for (int64_t place = 0; place < places; ++place) DSV4_RETURN_IF_ERROR(DraftPlace(place));
  return {};
}

Status ModelDrafter::DraftPlace(int64_t place) {
  MakeStep(place);
  DSV4_RETURN_IF_ERROR(ranks_.Draft(step_, place, caches_, &logits_, &confidence_));
  const auto v = static_cast<size_t>(vocab_size_);
  for (size_t s = 0; s < rows_.size(); ++s) Take(rows_[s], place, std::span(logits_).subspan(s * v, v), confidence_[s]);
  return {};
}

void ModelDrafter::Take(Row& row, int64_t place, std::span<const float> logits, float confidence) {
  if (row.ended || place >= std::min(row.draft->most, most_)) return;
  const Result<SampledToken> token = row.sampler->Sample(logits, {});
  row.ended = !token.ok();
  if (!row.ended) Add(row, place, token->id, confidence);
}

void ModelDrafter::Add(Row& row, int64_t place, TokenId token, float confidence) {
  row.last = token;
  row.draft->tokens.push_back(token);
  row.draft->confidence.push_back(facts_.says_how_sure ? Sigmoid(confidence)
                                                       : shares_[static_cast<size_t>(place)].accepted);
}

Status ModelDrafter::DraftOnDevice(int64_t places) {
  MakeStep(0);
  std::vector<SampleRow> draws;
  for (const Row& row : rows_) draws.push_back(DraftRowOf(*row.sampler, vocab_size_));
  const auto chain = [this](int r) -> DraftChain& { return *chains_[static_cast<size_t>(r)]; };
  DSV4_RETURN_IF_ERROR(ranks_.GiveViews(step_, caches_));
  DSV4_RETURN_IF_ERROR(ranks_.Run([&](int r) { return chain(r).Begin(ranks_.StepOf(r, step_), draws, places); }));
  const auto records = [](const auto& each) { return each->RecordsNext(); };
  was_first_ = was_first_ || std::any_of(chains_.begin(), chains_.end(), records);
  DSV4_RETURN_IF_ERROR(ranks_.RunRecorded([&](int r) { return chain(r).RecordsNext(); },
                                          [&](int r) { chain(r).Prepare(); },
                                          [&](int r) { return chain(r).Queue(), chain(r).Wait(); }));
  for (int64_t place = 0; place < places; ++place) {
    for (size_t s = 0; s < rows_.size(); ++s) {
      Row& row = rows_[s];
      const TokenId token = chain(0).token(place, static_cast<int64_t>(s));
      row.ended = row.ended || token < 0 || place >= std::min(row.draft->most, most_);
      if (!row.ended) Add(row, place, token, chain(0).confidence(place, static_cast<int64_t>(s)));
    }
  }
  return {};
}

bool ModelDrafter::Foresees(int64_t tokens, std::vector<float>* confidence) const {
  if (tokens > most_) return false;
  for (int64_t place = 0; place < tokens; ++place) confidence->push_back(shares_[static_cast<size_t>(place)].accepted);
  return true;
}

void ModelDrafter::Observe(const Draft& draft, int64_t accepted) {
  const auto proposed = static_cast<int64_t>(draft.tokens.size());
  for (int64_t i = 0; i < std::min(accepted + 1, proposed); ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.seen = std::min(share.seen + 1, kMostSeen);
    share.accepted += ((i < accepted ? 1.0f : 0.0f) - share.accepted) / static_cast<float>(share.seen);
  }
}

}  // namespace dsv4
