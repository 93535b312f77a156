// dsv4 bench drafts: the gain of draft tokens with a given acceptance, and the time of the steps that verify them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench.h"
#include "dsv4/sampling.h"
#include "dsv4/snapshot.h"
#include "errors.h"
#include "format.h"
#include "progress.h"

namespace dsv4::cli {

namespace {

constexpr int64_t kRowTokens = 24;  // enough to time steps of --rows

// The run of a batch until its first sequence ends, in rounds of this sequence.
struct DraftedRun {
  struct Mark {
    double seconds = 0;
    int64_t tokens = 0;
  };
  std::vector<Mark> marks = {{}};  // totals of the run at the end of each round
  DraftCounts counts;              // totals of the run
  std::vector<std::vector<TokenId>> texts;

  double seconds() const { return marks.back().seconds; }
  int64_t tokens() const { return marks.back().tokens; }
  double rate() const { return static_cast<double>(tokens()) / seconds(); }
  double a_step(double of_all) const { return of_all / static_cast<double>(std::max<int64_t>(counts.steps, 1)); }
  double ms() const { return a_step(1e3 * seconds()); }
  // Returns the relative standard error of rate(), estimated from the differences between parts of the run.
  double error() const;
};

double DraftedRun::error() const {
  const size_t rounds = marks.size() - 1, parts = std::min<size_t>(rounds, 16);
  if (parts < 2) return 1;  // unknown
  const double a_token = 1 / rate();
  double squares = 0;
  for (size_t i = 0; i < parts; ++i) {
    const Mark &from = marks[i * rounds / parts], &to = marks[(i + 1) * rounds / parts];
    const double off = to.seconds - from.seconds - a_token * static_cast<double>(to.tokens - from.tokens);
    squares += off * off;
  }
  const auto n = static_cast<double>(parts);
  return std::sqrt(squares * n / (n - 1)) / seconds();
}

// The prompts of the sequences. Batches of all sizes share them; each is computed once.
class Prompts {
 public:
  Prompts(Engine& engine, int64_t length) : engine_(engine), length_(length) {}

  std::vector<std::shared_ptr<const KvSnapshot>> Take(int64_t count) {
    ProgressLine progress;
    while (static_cast<int64_t>(all_.size()) < count) {
      const auto session = Must(engine_.NewSession());
      const std::vector<TokenId> ids = SomeTokens(length_, static_cast<uint64_t>(all_.size()) + 7,
                                                  engine_.info().vocab_size);
      Must(session->Append(ids, LogitRows::kNone, nullptr));
      all_.push_back(Must(session->Snapshot()));
      progress.Update("prompts of " + std::to_string(length_) + " tokens", static_cast<int64_t>(all_.size()), count);
    }
    progress.Clear();
    return {all_.begin(), all_.begin() + count};
  }

 private:
  Engine& engine_;
  const int64_t length_;
  std::vector<std::shared_ptr<const KvSnapshot>> all_;
};

class DraftBench {
 public:
  // Decode runs have `tokens` tokens per sequence, runs of Rows `row_tokens`, which is not larger.
  DraftBench(const BenchOptions& options, Engine& engine, Prompts& prompts, int64_t batch, int64_t context,
             int64_t tokens, int64_t row_tokens)
      : options_(options),
        engine_(engine),
        batch_(batch),
        context_(context),
        tokens_(tokens),
        row_tokens_(row_tokens),
        starts_(prompts.Take(batch)),
        off_(Measure({}, /*with=*/false, tokens)) {
    Json row = Head("drafts_off");
    row["ms_per_step"] = off_.ms();
    row["tokens_per_s"] = off_.rate();
    Report(options_, row,
           What() + ", without drafts: " + FormatFixed(off_.ms(), 3) + " ms per step, " + FormatFixed(off_.rate(), 1) +
               " tok/s");
  }

  // Measures steps with `rows` rows per sequence: its next token and `rows` - 1 draft tokens, all of them wrong.
  void Rows(int64_t rows) {
    const DraftedRun run = rows == 1 ? off_
                                     : Measure({.acceptance = 0, .repeats = Repeats(), .tokens = rows - 1}, true,
                                               row_tokens_);
    const double verify = rows == 1 ? run.ms() : run.a_step(1e3 * run.counts.verify_s);
    const double draft = run.a_step(1e3 * run.counts.draft_s);
    Json row = Head("verify");
    row["rows"] = rows;
    row["repeats"] = Repeats();
    row["ms_verify"] = verify;
    row["ms_draft"] = draft;
    row["ms_round"] = run.ms();
    row["of_one_row"] = verify / off_.ms();
    Report(options_, row,
           What() + ", " + std::to_string(rows) + " rows per sequence: " + FormatFixed(verify, 3) + " ms, " +
               FormatFixed(verify / off_.ms(), 2) + " times one row, and " + FormatFixed(draft, 3) + " ms for drafts");
  }

  // Measures drafts whose tokens are accepted with probability `acceptance`. The policy decides their length.
  void Accepted(double acceptance) {
    const DraftedRun run = Measure({.acceptance = acceptance, .repeats = Repeats()}, true, tokens_);
    const auto& c = run.counts;
    const double gain = run.rate() / off_.rate(), error = gain * std::hypot(run.error(), off_.error());
    const double per_step = run.a_step(static_cast<double>(run.tokens()));
    Json row = Head("drafts");
    row["right"] = acceptance;
    row["tokens_per_s"] = run.rate();
    row["tokens_per_s_off"] = off_.rate();
    row["gain"] = gain;
    row["gain_standard_error"] = error;
    row["tokens_per_step"] = per_step;
    row["drafted_per_step"] = run.a_step(static_cast<double>(c.drafted));
    row["accepted_per_step"] = run.a_step(static_cast<double>(c.accepted));
    row["verifications"] = c.verifications;
    row["steps"] = c.steps;
    row["ms_draft"] = run.a_step(1e3 * c.draft_s);
    Report(options_, row,
           What() + ", acceptance " + FormatFixed(acceptance, 2) + ": " + FormatFixed(run.rate(), 1) + " tok/s, " +
               FormatFixed(gain, 3) + " times without drafts (standard error " + FormatFixed(error, 3) + "), " +
               FormatFixed(per_step, 2) + " tokens per step");
  }

 private:
  double Repeats() const { return static_cast<double>(options_.repeats) / 100; }
  Json Head(const char* phase) const { return {{"phase", phase}, {"batch", batch_}, {"context", context_}}; }
  std::string What() const { return "batch " + std::to_string(batch_) + " context " + std::to_string(context_); }

  // Runs the batch once. The first `tokens` tokens warm up and let the policy adapt. Then complete rounds of the first
  // sequence count.
  DraftedRun Measure(KnownDrafts drafts, bool with, int64_t tokens) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    DraftedRun run;
    const auto total = static_cast<size_t>(tokens * (options_.repeat + 1));
    for (size_t i = 0; i < starts_.size(); ++i) {
      sessions.push_back(Must(engine_.NewSession(*starts_[i])));
      SamplingParams params = options_.sampling;
      params.seed = i;
      samplers.push_back(Must(Sampler::Create(params, engine_.info().vocab_size)));
      const TokenId first = SomeTokens(1, i + 1000, engine_.info().vocab_size).front();
      run.texts.push_back({first});
      items.push_back({.session = sessions.back().get(),
                       .sampler = samplers.back().get(),
                       .first = first,
                       .max_tokens = static_cast<int64_t>(total),
                       .speculate = with});
      if (with) drafts.texts.push_back({sessions.back().get(), static_cast<size_t>(context_), off_.texts[i]});
    }
    if (with) Must(ReplaceDrafts(engine_, std::move(drafts)));
    DraftCounts before;
    bool counts = false, more = true;
    Clock::time_point start;
    int64_t seen = 0;
    Must(engine_.Decode(items, [&](size_t item, const SampledToken& token) {
      run.texts[item].push_back(token.id);
      if (counts) ++seen;
      if (item == 0 && !token.drafted && more) {
        if (counts) {
          run.marks.push_back({Seconds(start, Clock::now()), seen});
          run.counts = Since(before);
        } else if (static_cast<int64_t>(run.texts[0].size()) > tokens) {
          counts = true;
          before = engine_.draft_counts();
          start = Clock::now();
        }
      }
      more = more && run.texts[item].size() <= total;
      return more || !with;  // without drafts the complete texts are needed
    }));
    if (with) Must(ReplaceDrafts(engine_, {}));
    return run;
  }

  DraftCounts Since(const DraftCounts& before) const {
    DraftCounts c = engine_.draft_counts();
    c.steps -= before.steps, c.verifications -= before.verifications;
    c.drafted -= before.drafted, c.accepted -= before.accepted;
    c.draft_s -= before.draft_s, c.verify_s -= before.verify_s, c.rest_s -= before.rest_s;
    return c;
  }

  const BenchOptions& options_;
  Engine& engine_;
  const int64_t batch_, context_, tokens_, row_tokens_;
  const std::vector<std::shared_ptr<const KvSnapshot>> starts_;
  const DraftedRun off_;  // without drafts; its texts are the known texts of the drafts
};

}  // namespace

void BenchDrafts(const BenchOptions& options, Engine& engine, std::span<const int64_t> batches, int64_t context,
                 int64_t tokens) {
  Prompts prompts(engine, context);
  const int64_t row_tokens = options.tokens > 0 ? tokens : std::min(tokens, kRowTokens);
  for (const int64_t batch : batches) {
    const int64_t of_each = options.tokens > 0 ? tokens : std::max(row_tokens, tokens / batch);
    DraftBench bench(options, engine, prompts, batch, context, of_each, row_tokens);
    for (const int64_t rows : options.rows.value_or(std::vector<int64_t>())) bench.Rows(rows);
    const std::vector<int64_t> usual = options.rows ? std::vector<int64_t>() : std::vector<int64_t>{70};
    for (const int64_t percent : options.acceptance.value_or(usual)) bench.Accepted(static_cast<double>(percent) / 100);
  }
}

}  // namespace dsv4::cli
