// Tokens: which may come, what each means for its sequence, and the end of it.
#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "server/schedule/sequence.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kCallBegin = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"";

bool HasPenalties(const SamplingParams& s) {
  return s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repeat_penalty != 1.0f;
}

}  // namespace

// Once for each sequence that gets a place in the batch: samplers count tokens of the whole vocabulary, and those that
// wait hold nothing.
Status Scheduler::MakeSamplers(Sequence& s) const {
  const int64_t vocab_size = engine_.info().vocab_size;
  SamplingParams sampling = s.params.sampling;
  if (sampling.seed) *sampling.seed += s.spec.choice;
  DSV4_ASSIGN_OR_RETURN(auto sampler, Sampler::Create(sampling, vocab_size));
  const std::span<const TokenId> drawn = s.drawn();
  sampler->AddPrompt(std::span(*s.spec.prompt).first(s.prompt_size - drawn.size()));
  // A grammar is for what follows the reasoning: no call may begin in there.
  const bool formed = s.params.content_grammar != nullptr;
  if (s.params.thinking && (HasPenalties(sampling) || formed)) {
    sampling.presence_penalty = 0;
    sampling.frequency_penalty = 0;
    sampling.repeat_penalty = 1.0f;
    if (formed && dsml_marker_) {
      sampling.logit_bias.emplace_back(*dsml_marker_, -std::numeric_limits<float>::infinity());
    }
    // Another seed: both samplers count their own tokens, and equal numbers would be drawn twice.
    sampling.seed = sampler->seed() ^ 0x9E3779B97F4A7C15u;
    DSV4_ASSIGN_OR_RETURN(s.reasoning_sampler, Sampler::Create(sampling, vocab_size));
    s.reasoning_sampler->AddOutput(drawn.first(s.drawn_reasoning));
    sampler->AddOutput(drawn.subspan(s.drawn_reasoning));
  } else {
    sampler->AddOutput(drawn);
  }
  s.sampler = std::move(sampler);
  return {};
}

void Scheduler::ChooseToken(Sequence& s) {
  if (s.spec.max_tokens == 0) return End(s, FinishReason::kLength);
  Result<SampledToken> sampled = SamplerOf(s).Sample(s.logits, Allowed(s));
  if (!sampled.ok()) return End(s, FinishReason::kError, sampled.status());
  AcceptToken(s, std::move(*sampled));
}

Sampler& Scheduler::SamplerOf(const Sequence& s) {
  return s.reasoning_sampler != nullptr && s.writer.in_reasoning() ? *s.reasoning_sampler : *s.sampler;
}

// Whether Allowed may say anything for the next token.
bool Scheduler::IsHeld(const Sequence& s) {
  return s.constraint || s.matcher != nullptr || s.params.allowed_ids != nullptr ||
         s.out.counts.completion < s.params.min_tokens;
}

// The tokens that may come next, a bit each; empty: all.
std::span<const uint32_t> Scheduler::Allowed(Sequence& s) const {
  std::span<const uint32_t> allowed;
  if (s.constraint) allowed = s.constraint->Allowed();
  if (s.matcher != nullptr) allowed = s.matcher->allowed();
  // A text that is complete may have nothing but its end left.
  const bool may_end = s.out.counts.completion >= s.params.min_tokens ||
                       (s.matcher != nullptr && s.matcher->complete());
  const std::vector<uint32_t>* listed = s.params.allowed_ids.get();
  if (may_end && listed == nullptr) return allowed;
  s.allowed.assign(static_cast<size_t>(engine_.info().vocab_size + 31) / 32, ~0u);
  std::copy(allowed.begin(), allowed.end(), s.allowed.begin());
  for (size_t i = 0; listed != nullptr && i < listed->size(); ++i) s.allowed[i] &= (*listed)[i];
  if (may_end) return s.allowed;
  const auto forbid = [&](TokenId id) { s.allowed[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32)); };
  for (const TokenId id : engine_.info().eos_token_ids) forbid(id);
  for (const TokenId id : s.params.stop_ids) forbid(id);
  return s.allowed;
}

void Scheduler::AcceptToken(Sequence& s, OutputToken token) {
  const auto now = clock_.Now();
  const TokenId id = token.id;
  const bool reasoned = s.writer.in_reasoning();
  ++s.out.counts.completion;
  ++step_metrics_.generated_tokens;
  if (reasoned && id != end_think_) ++s.out.counts.reasoning;
  if (!s.has_token) {
    s.has_token = true;
    s.first_token = now;
    step_metrics_.first_token_s.push_back(Seconds(now - s.job->submitted));
  } else {
    step_metrics_.token_gaps_s.push_back(Seconds(now - s.last_token));
  }
  s.last_token = now;

  const auto& eos = engine_.info().eos_token_ids;
  const auto& stop_ids = s.params.stop_ids;
  if (std::find(eos.begin(), eos.end(), id) != eos.end() && (!s.params.ignore_eos || s.matcher != nullptr)) {
    // What the grammar is for comes after the reasoning.
    if (reasoned && s.params.content_grammar != nullptr) return Force(s, std::string(kEndThink));
    s.out.end = std::move(token);
    return End(s, FinishReason::kStop);
  }
  if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
    s.out.matched_id = id;
    s.out.end = std::move(token);
    return End(s, FinishReason::kStop);
  }
  s.ids.push_back(id);
  s.out.tokens.push_back(std::move(token));
  if (s.constraint) {
    s.constraint->Accept(id);
    if (s.constraint->done()) s.constraint.reset();
  }
  if (s.matcher != nullptr) s.matcher->Accept(id);
  if (s.matcher == nullptr && s.params.call_grammar != nullptr && id == dsml_marker_) BeginCall(s);
  const bool ended = s.writer.Push(id, &s.out);
  if (ended) {
    s.out.matched_stop = s.writer.matched_stop();
    return End(s, s.writer.finish());
  }
  if (s.out.counts.completion >= s.spec.max_tokens) return End(s, FinishReason::kLength);
  if (static_cast<int64_t>(s.ids.size()) >= engine_.info().max_context) return End(s, FinishReason::kLength);
  if (reasoned && s.writer.in_content()) {
    BeginContent(s);
  } else if (reasoned && s.params.thinking_budget >= 0 && !s.end_think_forced &&
             s.out.counts.reasoning >= s.params.thinking_budget) {
    s.end_think_forced = true;
    Force(s, std::string(kEndThink));
  }
}

// The first token of the content comes next.
void Scheduler::BeginContent(Sequence& s) {
  if (s.matcher == nullptr && s.params.content_grammar != nullptr) {
    s.matcher = mask_workers_->Begin(s.params.content_grammar);
  }
  Force(s, "");
}

// The model has written the marker of a tag: with "<" before it, its grammar holds from there. A model that
// explains the markup writes markers in other places.
void Scheduler::BeginCall(Sequence& s) {
  if (s.ids.size() < 2 || !tokenizer_.TokenBytes(s.ids[s.ids.size() - 2]).ends_with('<')) return;
  if (!s.params.strict_calls && !s.writer.at_call()) return;
  if (s.params.exact_calls) s.writer.StreamCalls();
  s.matcher = mask_workers_->Begin(s.params.call_grammar, std::string("<").append(kDsmlMarker));
}

// Whether it is known which tokens may follow what `s` has, waiting for a worker until `until`. A grammar that takes
// too much work ends its sequence, or is left if the request did not ask for it.
bool Scheduler::KnowsAllowed(Sequence& s, Clock::time_point until) {
  if (s.matcher == nullptr) return true;
  switch (s.matcher->WaitUntil(until)) {
    case MaskAhead::State::kBusy:
      return false;
    case MaskAhead::State::kReady:
      return true;
    case MaskAhead::State::kFree:
      s.matcher.reset();
      return true;
    case MaskAhead::State::kFailed:
      break;
  }
  if (s.params.content_grammar == nullptr && !s.params.strict_calls) {
    s.matcher.reset();
    return true;
  }
  End(s, FinishReason::kError, s.matcher->status());
  return false;
}

// How many of `drafted` are worth verifying, as far as is known by `until`: no draw is a token that may not come.
size_t Scheduler::MayFollow(Sequence& s, std::span<const TokenId> drafted, Clock::time_point until) {
  const std::span<const uint32_t> allowed = Allowed(s);
  const auto first = static_cast<size_t>(drafted.front());
  if (!allowed.empty() && (allowed[first / 32] >> (first % 32) & 1) == 0) return 0;
  return s.matcher == nullptr ? drafted.size() : s.matcher->Foresee(drafted, until);
}

// Puts `text` behind the sequence as if the model had chosen it; an empty text stands for the beginning of the call
// that the request requires, if it does.
void Scheduler::Force(Sequence& s, const std::string& text) {
  std::string forced = text;
  if (text.empty()) {
    if (s.params.required_calls.empty() || s.call_forced) return;
    s.call_forced = true;
    forced = kCallBegin;
    if (s.params.required_calls.size() == 1) {
      forced += s.params.required_calls.front() + "\">\n";
    }
  }
  for (const TokenId id : tokenizer_.Encode(forced)) {
    if (!s.ended) AcceptToken(s, {.id = id});
  }
  if (text.empty() && !s.ended && s.params.required_calls.size() > 1 && s.matcher == nullptr) {
    std::vector<std::string> choices;
    for (const std::string& name : s.params.required_calls) choices.push_back(name + "\">\n");
    s.constraint.emplace(tokenizer_, engine_.info().vocab_size, std::move(choices));
  }
}

void Scheduler::End(Sequence& s, FinishReason reason, Status error) {
  if (s.ended) return;
  s.ended = true;
  s.writer.Finish(&s.out);
  if (reason == FinishReason::kStop && s.writer.finish() == FinishReason::kToolCalls) reason = FinishReason::kToolCalls;
  if (reason == FinishReason::kStop && s.out.matched_stop.empty()) s.out.matched_stop = s.writer.matched_stop();
  s.out.finish = reason;
  s.end_reason = reason;
  s.out.error = std::move(error);
}

}  // namespace dsv4::server
