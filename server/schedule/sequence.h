// One sequence of a request, from its prompt to its end.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/schedule/output.h"
#include "server/schedule/scheduler.h"
#include "server/structured/mask_ahead.h"

namespace dsv4::server {

inline double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

inline int64_t NowNs() { return Clock::now().time_since_epoch().count(); }

struct Scheduler::Sequence {
  Sequence(std::shared_ptr<Job> its_job, int its_index, const Tokenizer& tokenizer)
      : job(std::move(its_job)),
        index(its_index),
        spec(job->sequences[static_cast<size_t>(its_index)]),
        params(*spec.params),
        prompt_size(spec.prompt->size()),
        writer(tokenizer, params) {
    out.index = index;
    out.counts.prompt = static_cast<int64_t>(prompt_size);
    StepOutput told;
    for (const TokenId id : drawn()) {
      drawn_reasoning += writer.in_reasoning() ? 1 : 0;
      writer.Push(id, &told);
    }
  }

  size_t num_read() const { return session == nullptr ? 0 : session->tokens().size(); }
  // What waits for its first place in the batch shares the prompt with the other choices of its request.
  std::span<const TokenId> known_ids() const { return ids.empty() ? std::span(*spec.prompt) : std::span(ids); }
  size_t num_unread() const { return known_ids().size() - num_read(); }
  std::span<const TokenId> drawn() const { return std::span(*spec.prompt).last(spec.drawn); }
  // Tokens that the engine computes as a prompt's rows: all of the prompt but its last one. That one and what was
  // chosen are decode rows, however the prompt is cut into steps and whatever is asked about it.
  size_t prompt_end() const { return prompt_size - 1 - spec.drawn; }
  // Log-probabilities of its prompt are still asked for: every row of it must be computed.
  bool needs_prompt_rows() const { return params.prompt_logprobs >= 0 && prompt_rows_done < prompt_size; }
  // One token is left to read, and the next one follows from its row: like any step that writes.
  bool generating() const { return num_unread() == 1 && spec.max_tokens > 0 && !needs_prompt_rows(); }
  // The engine's regime of its next tokens.
  std::optional<PromptRegime> regime() const {
    return num_read() < prompt_end() ? RegimeOf(static_cast<int64_t>(computes)) : std::nullopt;
  }
  PromptState prompt_state() const {
    const size_t read = num_read(), end = prompt_end();
    PromptState state{.unread = static_cast<int64_t>(num_unread()),
                      .most = static_cast<int64_t>(num_unread()),
                      .to_end = read < end ? static_cast<int64_t>(end - read) : 0,
                      .regime = regime(),
                      .all_rows = needs_prompt_rows()};
    if (!cuts.empty()) state.most = std::min(state.most, static_cast<int64_t>(cuts.front() - read));
    if (state.to_end > 0) state.most = std::min(state.most, state.to_end);
    // The rows of the prompt are not mixed with those of chosen tokens.
    if (state.all_rows) state.most = std::min(state.most, static_cast<int64_t>(prompt_size - read));
    return state;
  }
  bool has_output() const {
    return tells_progress() || !out.prompt.empty() || !out.tokens.empty() || !out.text.empty() || !out.deltas.empty() ||
           out.finish != FinishReason::kNone;
  }
  int64_t num_prompt_read() const { return static_cast<int64_t>(std::min(num_read(), prompt_size)); }
  bool tells_progress() const { return params.progress && !has_token && num_prompt_read() > out.counts.read; }
  SequenceTimes Times(Clock::time_point now) const {
    SequenceTimes times{.queued = Seconds((was_admitted ? admitted : now) - job->submitted)};
    if (was_admitted) times.prompt = Seconds((has_token ? first_token : now) - admitted);
    if (has_token) times.decode = Seconds(last_token - first_token);
    return times;
  }

  const std::shared_ptr<Job> job;
  const int index;
  const SequenceSpec& spec;
  const GenerationParams& params;
  std::vector<TokenId> ids;  // prompt, then what was chosen; empty before its first place in the batch
  const size_t prompt_size;
  std::unique_ptr<Session> session;
  std::unique_ptr<Sampler> sampler;            // of the content
  std::unique_ptr<Sampler> reasoning_sampler;  // without penalties; null: `sampler` does both
  OutputWriter writer;
  std::optional<ChoiceConstraint> constraint;
  std::unique_ptr<MaskAhead> matcher;  // what is written now follows a grammar
  bool waits_for_mask = false;         // of which it is not known yet what it allows: no steps until then
  std::vector<uint32_t> allowed;       // Scheduler::Allowed's, where nothing else holds it
  bool call_forced = false;
  bool end_think_forced = false;
  size_t drawn_reasoning = 0;     // of drawn(): reasoning
  size_t prompt_rows_done = 0;    // prompt tokens whose log-probabilities have been handed out
  std::vector<float> prompt_row;  // logits after the prompt token read last, where prompt_logprobs asks for them

  std::vector<size_t> cuts;  // token counts ahead, in order, at which the prefix cache gets a snapshot

  bool waits_for_disk = false;  // what it goes on from is being read
  int num_reads = 0;            // that were begun for it

  std::vector<float> logits;
  size_t take = 0;  // tokens of this step
  // of the tokens in front of prompt_end(): those that came from no cache (StepItem::prompt_tokens)
  size_t computes = 0;
  bool ended = false;
  bool is_kept = false;  // the prefix cache has what it read and wrote, as far as it can
  StepOutput out;
  Clock::time_point admitted, first_token, last_token;
  bool was_admitted = false, has_token = false;
  FinishReason end_reason = FinishReason::kNone;
};

}  // namespace dsv4::server
