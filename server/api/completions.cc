// POST /v1/completions
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "server/api/body_fields.h"
#include "server/api/chat_input.h"
#include "server/api/output_form.h"
#include "server/api/prompt.h"
#include "server/api/reply.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxEcho = size_t{32} << 20;      // bytes of prompts in a reply, counted once per choice
constexpr size_t kMaxPromptIds = size_t{1} << 20;  // ids of prompts in a reply, counted once per choice

struct CompletionOptions : ReplyOptions {
  bool echo = false;
  bool logprobs = false;
  std::vector<std::shared_ptr<const std::vector<TokenId>>> prompt_ids = {};  // of each prompt, with token_ids
};

int64_t CodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

class CompletionReply : public Reply {
 public:
  CompletionReply(const Api& api, ExchangePtr exchange, const CompletionOptions& options, size_t num_sequences,
                  std::vector<std::string> prompt_texts, bool skip_special)
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, options.stream, num_sequences, options.n),
        options_(options),
        prompt_texts_(std::move(prompt_texts)),
        choices_(num_sequences),
        id_(NewId("cmpl-")),
        created_(UnixTime()),
        head_(Dump(Head())) {
    for (Choice& choice : choices_) choice.decoder.emplace(api.tokenizer, DecodeOptions{.skip_special = skip_special});
  }

 private:
  // The parallel lists of OpenAI's older log-probabilities.
  struct Logprobs {
    Json tokens = Json::array(), token_logprobs = Json::array(), top_logprobs = Json::array(),
         text_offset = Json::array();
  };
  struct Choice {
    std::string text;
    std::vector<OutputToken> prompt, tokens;  // with their log-probabilities, if those come at the end
    std::optional<StreamDecoder> decoder;
    int64_t offset = 0;  // in code points
    FinishReason finish = FinishReason::kNone;
    Json stop_reason;
    std::vector<TokenId> ids;
    bool any_token = false;  // the log-probabilities have at least one token
    bool echoed = false, prompt_sent = false;
  };

  void Append(const OutputToken& token, bool known, Choice& choice, Logprobs* out) const {
    const std::string text = TokenText(api_.tokenizer, token.id);
    out->tokens.push_back(text);
    out->text_offset.push_back(choice.offset);
    choice.any_token = true;
    // Counts the text that is returned: without special tokens, and a character of several tokens counts once.
    const auto decoded = choice.decoder->Push(token.id);
    if (decoded.ok()) choice.offset += CodePoints(*decoded);
    if (!known) {
      out->token_logprobs.push_back(nullptr);
      out->top_logprobs.push_back(nullptr);
      return;
    }
    const Json logprob = FloatToJson(token.logprob);
    out->token_logprobs.push_back(logprob);
    Json top = Json::object();
    // If several tokens have the same text, the likeliest stays. The chosen token is always listed, with the same
    // number.
    for (const TokenLogprob& other : token.top) {
      const std::string key = TokenText(api_.tokenizer, other.id);
      if (!top.contains(key)) top[key] = FloatToJson(other.logprob);
    }
    if (!top.contains(text)) top[text] = logprob;
    out->top_logprobs.push_back(std::move(top));
  }

  Logprobs Collect(const std::vector<OutputToken>& prompt, const std::vector<OutputToken>& tokens,
                   Choice& choice) const {
    Logprobs out;
    for (const OutputToken& token : prompt) Append(token, choice.any_token, choice, &out);
    for (const OutputToken& token : tokens) Append(token, true, choice, &out);
    return out;
  }

  // The token that ends a reply has an entry in the lists of log-probabilities, but no text. lm-evaluation-harness
  // requests one token after the prompt and removes the last entry.
  static void AddEnd(StepOutput* output) {
    if (output->end) output->tokens.push_back(*std::exchange(output->end, std::nullopt));
  }

  // Returns the prompt of a choice if the request has echo. The choices of a prompt share it.
  std::string EchoOf(size_t index) const {
    return options_.echo ? prompt_texts_[index / static_cast<size_t>(options_.n)] : "";
  }

  void SetIds(size_t index, bool with_prompt, std::vector<TokenId> ids, Json* choice) const {
    if (!options_.token_ids) return;
    (*choice)["token_ids"] = std::move(ids);
    if (with_prompt) (*choice)["prompt_token_ids"] = *options_.prompt_ids[index / static_cast<size_t>(options_.n)];
  }

  static Json ToJson(Logprobs l) {
    return {{"text_offset", std::move(l.text_offset)},
            {"token_logprobs", std::move(l.token_logprobs)},
            {"tokens", std::move(l.tokens)},
            {"top_logprobs", std::move(l.top_logprobs)}};
  }

  Json Head() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", api_.options.model_name},
            {"system_fingerprint", api_.fingerprint}};
  }

  void Take(StepOutput& output) override {
    Choice& choice = choices_[static_cast<size_t>(output.index)];
    choice.finish = output.finish;
    if (!output.matched_stop.empty()) choice.stop_reason = output.matched_stop;
    if (output.matched_id) choice.stop_reason = *output.matched_id;
    if (!stream_) {
      choice.text += output.text;
      if (options_.token_ids) choice.ids = IdsOf(output, std::move(choice.ids));
      if (!options_.logprobs) return;
      AddEnd(&output);
      std::move(output.prompt.begin(), output.prompt.end(), std::back_inserter(choice.prompt));
      std::move(output.tokens.begin(), output.tokens.end(), std::back_inserter(choice.tokens));
      return;
    }
    Logprobs logprobs;
    const bool counted = (options_.continuous_usage || options_.token_ids) && !output.tokens.empty();
    if (options_.logprobs) {
      AddEnd(&output);
      logprobs = Collect(output.prompt, output.tokens, choice);
    }
    std::string text;
    const bool first = !std::exchange(choice.echoed, true);
    if (first) text = EchoOf(static_cast<size_t>(output.index));
    text += output.text;
    const bool ended = output.finish != FinishReason::kNone;
    const bool reads = options_.progress && output.counts.completion == 0 && output.counts.read > 0;
    if (text.empty() && logprobs.tokens.empty() && !ended && !counted && !reads) return;
    Json chunk, one = {{"index", output.index}, {"text", std::move(text)}, {"logprobs", nullptr}};
    if (!logprobs.tokens.empty()) one["logprobs"] = ToJson(std::move(logprobs));
    one["finish_reason"] = ended ? Json(FinishReasonName(output.finish)) : Json(nullptr);
    if (ended && !choice.stop_reason.is_null()) one["stop_reason"] = choice.stop_reason;
    SetIds(static_cast<size_t>(output.index), !std::exchange(choice.prompt_sent, true), IdsOf(output, {}), &one);
    chunk["choices"] = Json::array({std::move(one)});
    if (reads) chunk["prompt_progress"] = ProgressToJson(output.counts, output.times);
    if (ended || options_.timings) chunk["timings"] = TimingsToJson(output.counts, output.times);
    if (options_.continuous_usage) {
      chunk["usage"] = UsageToJson(usage_.Total());
    } else if (options_.include_usage) {
      chunk["usage"] = nullptr;
    }
    EventBehind(head_, chunk);
  }

  void End() override {
    if (stream_) {
      if (options_.include_usage) {
        Json chunk = Head();
        chunk["choices"] = Json::array();
        chunk["usage"] = UsageToJson(usage_.Total());
        chunk["timings"] = TimingsToJson(usage_.Total(), usage_.Times());
        Event(chunk);
      }
      return Raw("data: [DONE]\n\n");
    }
    Json whole = Head();
    whole["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      Json choice = {{"index", i}, {"text", EchoOf(i) + c.text}, {"logprobs", nullptr}};
      if (options_.logprobs) choice["logprobs"] = ToJson(Collect(c.prompt, c.tokens, c));
      choice["finish_reason"] = FinishReasonName(c.finish);
      if (!c.stop_reason.is_null()) choice["stop_reason"] = c.stop_reason;
      SetIds(i, /*with_prompt=*/true, std::move(c.ids), &choice);
      whole["choices"].push_back(std::move(choice));
    }
    whole["usage"] = UsageToJson(usage_.Total());
    whole["timings"] = TimingsToJson(usage_.Total(), usage_.Times());
    whole_ = Dump(whole);
  }

  const CompletionOptions options_;
  const std::vector<std::string> prompt_texts_;
  std::vector<Choice> choices_;
  const std::string id_;
  const int64_t created_;
  const std::string head_;
};

using Ids = std::vector<TokenId>;

// Appends a member of an object: its name, and an array with the JSON of each id.
template <typename JsonOf>
void AppendList(std::string_view name, const Ids& ids, const JsonOf& json_of, std::string* out) {
  out->append("\"").append(name).append("\":[");
  for (const TokenId id : ids) out->append(json_of(id)).append(",");
  if (!ids.empty()) out->pop_back();
  out->append("]");
}

// Returns the text of ids. Skips ids without text: a model may have more ids than its tokenizer.
std::string Decode(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, {.skip_special = skip_special});
  std::string text;
  for (const TokenId id : ids) {
    const auto piece = decoder.Push(id);
    if (piece.ok()) text += *piece;
  }
  return text + decoder.Finish();
}

}  // namespace

void ServeCompletions(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kCompletionsBody);
  CheckModel(api, fields);

  GenerationParams params;
  ReadSampling(api, fields, &params);
  CompletionOptions options{ReadReplyOptions(fields)};
  params.progress = options.progress;
  options.echo = fields.Bool("echo").value_or(false);
  const auto logprobs = fields.Integer("logprobs");
  if (logprobs) {
    options.logprobs = true;
    const auto top = static_cast<int>(std::min(*logprobs, api.model.vocab_size));
    params.sampling.top_logprobs = top;
    if (options.echo) params.prompt_logprobs = top;
  }
  GrammarPlan plan = PlanForm(api, ReadResponseFormat(fields), Json::array(), &params);
  const auto max_tokens = ReadMaxTokens(fields, {"max_tokens", "n_predict", "max_new_tokens"}, 16);
  const bool has_hole = !fields.Text("suffix").value_or("").empty();
  if (has_hole && options.echo && logprobs)
    Refuse("suffix",
           "suffix cannot be used with echo and logprobs: the prompt has marks around the hole; leave echo out");

  std::vector<CompletionPrompt> prompts = PromptReader(api, TenantOf(api, exchange->request()), fields)
                                              .Read(fields.Get("prompt"));
  const auto total = static_cast<int64_t>(prompts.size()) * options.n;
  if (total > kMaxCompletions) RefuseCompletions(total);
  const auto job = std::make_shared<Job>();
  const auto shared = std::make_shared<GenerationParams>(std::move(params));
  std::vector<std::string> texts;
  size_t echoed = 0, ids_told = 0;
  for (CompletionPrompt& prompt : prompts) {
    const int64_t most = LimitTokens(api, prompt.ids.size(), max_tokens, ErrorForm::kOpenAi, "prompt");
    const TextRange before = prompt.before_hole;
    if (options.echo) {
      texts.push_back(has_hole ? prompt.text->text.substr(before.begin, before.end - before.begin)
                               : Decode(api.tokenizer, prompt.ids, shared->skip_special));
      echoed += texts.back().size() * static_cast<size_t>(options.n);
      if (echoed > kMaxEcho)
        Refuse("echo", "echo would repeat more than " + std::to_string(kMaxEcho) +
                           " bytes of prompts; send fewer or shorter prompts");
    }
    const auto ids = std::make_shared<const Ids>(std::move(prompt.ids));
    if (options.token_ids) {
      options.prompt_ids.push_back(ids);
      ids_told += ids->size() * static_cast<size_t>(options.n);
      if (ids_told > kMaxPromptIds)
        Refuse("return_token_ids", "return_token_ids would return more than " + std::to_string(kMaxPromptIds) +
                                       " ids of prompts; send fewer or shorter prompts");
    }
    AddSequences(job.get(), {.prompt = ids, .params = shared, .text = prompt.text, .max_tokens = most}, options.n);
  }
  const auto reply = std::make_shared<CompletionReply>(api, exchange, options, job->sequences.size(), std::move(texts),
                                                       shared->skip_special);
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job, [reply, job] { reply->Run(job); });
}

void ServeCompletionsRender(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Fields fields(document.root(), "", &kCompletionsRenderBody);
  CheckModel(api, fields);
  Json list = Json::array();
  for (const CompletionPrompt& prompt :
       PromptReader(api, TenantOf(api, exchange->request()), fields, /*remembered=*/false).Read(fields.Get("prompt")))
    list.push_back({{"request_id", exchange->request().id}, {"token_ids", prompt.ids}});
  exchange->Respond(200, "application/json", Dump(list));
}

void ServeTokenize(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kTokenizeBody);
  CheckModel(api, fields);
  Ids ids;
  if (const auto text = fields.Text("prompt")) {
    ids = api.tokenizer.Encode(*text);
    const TokenId bos = api.model.bos_token_id;
    const bool add_special = fields.Bool("add_special_tokens").value_or(true);
    if (add_special && bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  } else if (fields.Has("messages")) {
    ids = *MakeChatPrompt(api, TenantOf(api, exchange->request()), ReadChatToEncode(api, fields)).ids;
  } else {
    Refuse("prompt", "prompt (a string) or messages is missing");
  }
  // A text may have many millions of ids, which would take gigabytes as JSON values.
  std::string reply = Dump({{"count", ids.size()}, {"max_model_len", api.model.max_context}});
  reply.back() = ',';
  AppendList(
      "tokens", ids, [](TokenId id) { return std::to_string(id); }, &reply);
  if (fields.Bool("return_token_strs").value_or(false)) {
    reply += ',';
    AppendList(
        "token_strs", ids, [&](TokenId id) { return Dump(TokenText(api.tokenizer, id)); }, &reply);
  }
  reply += "}";
  exchange->Respond(200, "application/json", std::move(reply));
}

void ServeDetokenize(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kDetokenizeBody);
  CheckModel(api, fields);
  const Json* tokens = fields.Array("tokens");
  if (tokens == nullptr) Refuse("tokens", "tokens is missing");
  const Ids ids = ReadIds(api, *tokens, "tokens");
  const auto text = api.tokenizer.Decode(ids);
  if (!text.ok()) Refuse("tokens", text.status().message());
  exchange->Respond(200, "application/json", Dump({{"prompt", *text}}));
}

}  // namespace dsv4::server
