// dsv4 generate: continues a prompt.
#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "clock.h"
#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/stop_strings.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

namespace {

using Json = nlohmann::ordered_json;

// Returns ", 12.3 tok/s", or "" if nothing was measured.
std::string Rate(int64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "";
  return ", " + FormatFixed(static_cast<double>(tokens) / seconds, 1) + " tok/s";
}

std::string Tokens(int64_t count) { return FormatCount(count) + (count == 1 ? " token" : " tokens"); }

// Returns the text of the prompt from the source that the flags name.
std::string ReadPrompt(const GenerateOptions& options) {
  std::string text;
  if (options.prompt) {
    text = *options.prompt;
  } else if (!options.prompt_file.empty()) {
    text = ReadInput(options.prompt_file);
  } else {
    text = ReadStdin();
  }
  NoteInvalidUtf8(text, "the prompt");
  return text;
}

struct Generation {
  std::vector<TokenId> ids;
  std::vector<SampledToken> sampled;  // with --logprobs
  std::string text;
  std::string draft_log;                 // with --draft-log
  std::string finish_reason = "length";  // "stop", "length" or "interrupted"
  Clock::time_point start;
  Clock::time_point prompt_done;
  Clock::time_point first_token;
  Clock::time_point end;
};

// Collects and streams the text of the output, in complete characters and without stop strings. Without a tokenizer the
// text is the ids, separated by spaces.
class TextSink {
 public:
  TextSink(const Tokenizer* tokenizer, StopMatcher stops, bool stream)
      : tokenizer_(tokenizer), stops_(std::move(stops)), stream_(stream) {
    if (tokenizer_ != nullptr)
      decoder_ = std::make_unique<StreamDecoder>(*tokenizer_, DecodeOptions{.skip_special = true});
  }

  // Returns false after a complete stop string.
  bool Push(TokenId id) {
    if (tokenizer_ == nullptr) {
      Emit(FormatIds({&id, 1}).insert(0, text_.empty() ? 0 : 1, ' '));
    } else {
      const auto text = decoder_->Push(id);
      if (text.ok()) Emit(stops_.Push(*text));  // an id that the tokenizer does not have has no text
    }
    return !stops_.stopped();
  }

  bool Finish() {
    if (decoder_ && !stops_.stopped()) Emit(stops_.Push(decoder_->Finish()));
    if (!stops_.stopped()) Emit(stops_.Finish());
    // A pipe or a file gets exactly the text. On a terminal the shell's prompt begins on a new line. Ids are a line.
    const bool end_line = tokenizer_ == nullptr || StdoutIsTerminal();
    if (stream_ && end_line && !text_.empty() && text_.back() != '\n') Print("\n");
    return !stops_.stopped();
  }

  const std::string& text() const { return text_; }

 private:
  void Emit(const std::string& piece) {
    text_ += piece;
    if (stream_ && !piece.empty()) Print(piece);
  }

  const Tokenizer* tokenizer_;
  std::unique_ptr<StreamDecoder> decoder_;
  StopMatcher stops_;
  bool stream_;
  std::string text_;
};

// The lines of --draft-log: one for each step after the prompt, also if it had no drafts.
class DraftLog {
 public:
  DraftLog(int64_t prompt_tokens, std::string* lines) : prompt_tokens_(prompt_tokens), lines_(lines) {}

  // Before the first token of a step; `written`: tokens of the output so far.
  void BeginStep(int64_t written) {
    EndStep();
    without_drafts_ = {.position = prompt_tokens_ + written - 2};
    in_step_ = true;
  }
  void Add(const Verification& v) {  // after the tokens of a step with drafts
    in_step_ = false;
    const Json line = {{"p", v.position},
                       {"proposed", std::vector<TokenId>(v.proposed.begin(), v.proposed.end())},
                       {"accepted", v.accepted}};
    *lines_ += line.dump() + "\n";
  }
  void EndStep() {
    if (in_step_) Add(without_drafts_);
  }

 private:
  const int64_t prompt_tokens_;
  std::string* lines_;
  Verification without_drafts_;
  bool in_step_ = false;
};

Generation Generate(const GenerateOptions& options, Engine& engine, Session& session, Sampler& sampler,
                    const Tokenizer* tokenizer, std::span<const TokenId> prompt) {
  Generation out;
  ProgressLine progress;
  TextSink sink(tokenizer, Must(StopMatcher::Create(options.stops.texts)), /*stream=*/!options.json);
  const std::vector<TokenId> stop_ids = StopIds(options.stops, engine.info(), !options.ignore_eos);
  std::vector<float> logits;
  out.start = Clock::now();
  Must(session.Append(prompt, LogitRows::kLast, &logits, progress.Callback()));
  progress.Clear();
  out.prompt_done = out.first_token = Clock::now();
  sampler.AddPrompt(prompt);

  // Accepts a drawn token. Returns false if it is the last.
  const auto accept = [&](const SampledToken& token) {
    if (out.ids.empty()) out.first_token = Clock::now();
    if (std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end()) {
      out.finish_reason = "stop";
      return false;
    }
    out.ids.push_back(token.id);
    if (options.sampling.top_logprobs >= 0) out.sampled.push_back(token);
    if (!sink.Push(token.id)) {
      out.finish_reason = "stop";
      return false;
    }
    if (static_cast<int64_t>(out.ids.size()) == options.max_tokens) return false;
    if (static_cast<int64_t>(session.tokens().size()) >= engine.info().max_context) {
      PrintNote("the context is full (" + FormatCount(engine.info().max_context) + " tokens)");
      return false;
    }
    if (Interrupted()) {
      out.finish_reason = "interrupted";
      return false;
    }
    return true;
  };
  if (Interrupted()) {
    out.finish_reason = "interrupted";
  } else if (options.max_tokens != 0 && accept(Must(sampler.Sample(logits)))) {
    const int64_t left = options.max_tokens < 0 ? std::numeric_limits<int64_t>::max()
                                                : options.max_tokens - static_cast<int64_t>(out.ids.size());
    DecodeItem item{.session = &session, .sampler = &sampler, .first = out.ids.back(), .max_tokens = left};
    DraftLog log(static_cast<int64_t>(prompt.size()), &out.draft_log);
    if (!options.draft_log_file.empty()) item.on_verification = [&log](const Verification& v) { log.Add(v); };
    Must(engine.Decode({&item, 1}, [&](size_t, const SampledToken& token) {
      if (!token.drafted) log.BeginStep(static_cast<int64_t>(out.ids.size()));
      return accept(token);
    }));
    log.EndStep();
  }
  out.end = Clock::now();
  if (!sink.Finish()) out.finish_reason = "stop";
  out.text = sink.text();
  return out;
}

Json LogprobsToJson(const std::vector<SampledToken>& tokens, const Tokenizer* tokenizer) {
  const auto entry = [&](TokenId id, float logprob) {
    Json j = {{"id", id}};
    if (tokenizer != nullptr && tokenizer->IsValid(id)) j["token"] = tokenizer->TokenBytes(id);
    j["logprob"] = logprob;
    return j;
  };
  Json list = Json::array();
  for (const SampledToken& token : tokens) {
    Json j = entry(token.id, token.logprob);
    j["top"] = Json::array();
    for (const TokenLogprob& other : token.top) j["top"].push_back(entry(other.id, other.logprob));
    list.push_back(std::move(j));
  }
  return list;
}

// Completes the prompt: adds BOS before a text, and checks vocabulary and context.
void FinishPrompt(const GenerateOptions& options, const ModelInfo& info, std::vector<TokenId>* prompt) {
  if (!options.token_ids_file.empty()) {
    CheckTokenIds(*prompt, info.vocab_size, options.token_ids_file);
  } else if (!options.no_bos && info.bos_token_id >= 0 && (prompt->empty() || prompt->front() != info.bos_token_id)) {
    prompt->insert(prompt->begin(), info.bos_token_id);
  }
  if (prompt->empty()) throw RunError("the prompt is empty; give a text or token ids");
  if (static_cast<int64_t>(prompt->size()) > info.max_context) {
    throw RunError("the prompt has " + FormatCount(static_cast<int64_t>(prompt->size())) +
                   " tokens, more than the context of " + FormatCount(info.max_context) +
                   "; shorten it or raise --ctx");
  }
}

// Figures of a run, for --json and the summary.
struct Figures {
  int64_t prompt_tokens, output_tokens;
  int64_t steps;  // tokens after the first one, which the prompt's logits give; one step each, without drafts
  double load_s, prompt_s, decode_s, first_token_s;
  DraftCounts drafts;
  uint64_t seed;
  bool greedy;
};

Json ToJson(const GenerateOptions& options, const Generation& g, const Figures& f, const Tokenizer* tokenizer) {
  Json j = {{"text", g.text},
            {"ids", g.ids},
            {"finish_reason", g.finish_reason},
            {"prompt_tokens", f.prompt_tokens},
            {"completion_tokens", f.output_tokens},
            {"seed", f.seed}};
  if (f.drafts.verifications > 0) {
    j["drafts"] = {{"steps", f.drafts.steps}, {"proposed", f.drafts.drafted}, {"accepted", f.drafts.accepted}};
  }
  if (options.sampling.top_logprobs >= 0) j["logprobs"] = LogprobsToJson(g.sampled, tokenizer);
  j["timings"] = {{"load_s", f.load_s},
                  {"prompt_s", f.prompt_s},
                  {"decode_s", f.decode_s},
                  {"time_to_first_token_s", f.first_token_s},
                  {"prompt_tokens_per_s", f.prompt_s > 0 ? static_cast<double>(f.prompt_tokens) / f.prompt_s : 0.0},
                  {"decode_tokens_per_s", f.decode_s > 0 ? static_cast<double>(f.steps) / f.decode_s : 0.0}};
  return j;
}

std::string Summary(const Figures& f) {
  std::string summary = "load " + FormatFixed(f.load_s, 2) + " s | prompt " + Tokens(f.prompt_tokens) +
                        Rate(f.prompt_tokens, f.prompt_s) + " | generated " + Tokens(f.output_tokens) +
                        Rate(f.steps, f.decode_s);
  if (f.output_tokens > 0) summary += " | first token after " + FormatFixed(1000 * f.first_token_s, 0) + " ms";
  if (f.drafts.verifications > 0) {
    const double a_step = static_cast<double>(f.steps) / static_cast<double>(std::max<int64_t>(f.drafts.steps, 1));
    summary += " | drafts " + FormatCount(f.drafts.accepted) + " of " + FormatCount(f.drafts.drafted) + " accepted, " +
               FormatFixed(a_step, 2) + " tokens per step";
  }
  if (!f.greedy) summary += " | seed " + std::to_string(f.seed);
  return summary;
}

}  // namespace

int RunGenerate(const GenerateOptions& options) {
  const bool from_ids = !options.token_ids_file.empty();
  if (!from_ids && !options.prompt && options.prompt_file.empty() && StdinIsTerminal()) {
    throw UsageError("no prompt; add -p TEXT, --prompt-file F or --token-ids F, or pipe a text to stdin");
  }
  EngineOptions model = options.model;
  model.model_dir = FindModelDir(model.model_dir);
  for (const std::string& file : {options.output_ids_file, options.draft_log_file}) {
    if (!file.empty()) CheckWritable(file);
  }
  CountedExperts counted(options.count_experts_file, model.offload);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!from_ids || HasTokenizer(model.model_dir)) tokenizer = Must(Tokenizer::Load(model.model_dir));
  if (tokenizer == nullptr && !options.stops.texts.empty()) {
    throw RunError(model.model_dir + " has no tokenizer.json, which --stop needs; add the file, or remove --stop");
  }
  std::vector<TokenId> prompt = from_ids ? ReadTokenIds(options.token_ids_file)
                                         : tokenizer->Encode(ReadPrompt(options));

  const auto load_start = Clock::now();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress);
  const double load_s = Seconds(load_start, Clock::now());
  counted.Begin(*engine);
  FinishPrompt(options, engine->info(), &prompt);
  const SamplingParams sampling = SamplingOf(options.sampling, options.given_sampling, model.model_dir);
  MustBeUsable(ValidateSampling(sampling, engine->info().vocab_size));
  const std::unique_ptr<Sampler> sampler = Must(Sampler::Create(sampling, engine->info().vocab_size));
  const std::unique_ptr<Session> session = Must(engine->NewSession());

  const Generation g = Generate(options, *engine, *session, *sampler, tokenizer.get(), prompt);
  const auto output_tokens = static_cast<int64_t>(g.ids.size());
  const Figures figures = {.prompt_tokens = static_cast<int64_t>(prompt.size()),
                           .output_tokens = output_tokens,
                           .steps = std::max<int64_t>(output_tokens - 1, 0),
                           .load_s = load_s,
                           .prompt_s = Seconds(g.start, g.prompt_done),
                           .decode_s = Seconds(g.prompt_done, g.end),
                           .first_token_s = Seconds(g.start, g.first_token),
                           .drafts = engine->draft_counts(),
                           .seed = sampler->seed(),
                           .greedy = sampling.temperature == 0};
  if (options.json) {
    const Json j = ToJson(options, g, figures, tokenizer.get());
    Print(j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  if (g.finish_reason == "interrupted") {
    counted.Write(*engine);
    throw QuietExit{kExitInterrupted};
  }
  if (!options.output_ids_file.empty()) WriteOutput(options.output_ids_file, FormatIds(g.ids) + "\n");
  if (!options.draft_log_file.empty()) WriteOutput(options.draft_log_file, g.draft_log);
  const bool text_ends_line = tokenizer == nullptr || StdoutIsTerminal() || g.text.empty() || g.text.back() == '\n';
  const bool within_line = !options.json && !text_ends_line;
  PrintError((within_line && StderrIsStdout() ? "\n" : "") + Summary(figures) + "\n");
  counted.Write(*engine);  // last, so that an error loses no other output
  return kExitDone;
}

}  // namespace dsv4::cli
