// POST /v1/chat/completions
#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/body_fields.h"
#include "server/api/chat_input.h"
#include "server/api/output_form.h"
#include "server/api/reasoning.h"
#include "server/api/reply.h"

namespace dsv4::server {

namespace {

struct ChatOptions : ReplyOptions {
  bool logprobs = false;
  std::vector<std::string> custom_tools;  // names
  ReasoningPlace reasoning = ReasoningPlace::kField;
  std::string echo;                                                  // the content begins with it
  std::shared_ptr<const std::vector<TokenId>> prompt_ids = nullptr;  // set with token_ids
};

class ChatReply : public Reply {
 public:
  ChatReply(const Api& api, ExchangePtr exchange, const ChatOptions& options)
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, options.stream, static_cast<size_t>(options.n), options.n),
        options_(options),
        choices_(static_cast<size_t>(options.n)),
        id_(NewId("chatcmpl-")),
        created_(UnixTime()),
        chunk_head_(Dump(Head("chat.completion.chunk"))) {}

 private:
  struct Choice {
    std::string reasoning, content;
    Json calls = Json::array();
    std::vector<OutputToken> tokens;  // with their log-probabilities
    std::vector<TokenId> ids;
    bool echoed = false;
    bool in_think_tag = false;
    Json stop_reason;
    FinishReason finish = FinishReason::kNone;
    bool role_sent = false;
    bool in_custom = false;  // the call that a stream is writing takes a text
    std::string custom_arguments;
  };

  bool IsCustom(const std::string& name) const {
    return std::find(options_.custom_tools.begin(), options_.custom_tools.end(), name) != options_.custom_tools.end();
  }
  Json ToCustom(const Json& call) const {
    const Json& function = call["function"];
    return {{"id", call["id"]},
            {"type", "custom"},
            {"custom", {{"name", function["name"]}, {"input", CustomInput(function["arguments"].get<std::string>())}}}};
  }

  Json Head(const char* object) const {
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", api_.options.model_name},
            {"system_fingerprint", api_.fingerprint}};
  }

  void SetReasoning(Json* object, const std::string& text) const {
    const std::string& field = api_.options.reasoning_field;
    if (field != "reasoning") (*object)["reasoning_content"] = text;
    if (field != "reasoning_content") (*object)["reasoning"] = text;
  }

  void Take(StepOutput& output) override {
    Choice& choice = choices_[static_cast<size_t>(output.index)];
    choice.finish = output.finish;
    if (!output.matched_stop.empty()) choice.stop_reason = output.matched_stop;
    if (output.matched_id) choice.stop_reason = *output.matched_id;
    ShapeContent(output, choice);
    if (options_.token_ids) choice.ids = IdsOf(output, std::move(choice.ids));
    if (stream_) return Stream(output, choice);
    for (OutputDelta& delta : output.deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::kReasoning:
          choice.reasoning += delta.text;
          break;
        case OutputDelta::Kind::kContent:
          choice.content += delta.text;
          break;
        case OutputDelta::Kind::kToolCallBegin:
          choice.calls.push_back(
              {{"id", NewId("call_")}, {"type", "function"}, {"function", {{"name", delta.text}, {"arguments", ""}}}});
          break;
        case OutputDelta::Kind::kToolCallArguments:
          choice.calls.back()["function"]["arguments"].get_ref<std::string&>() += delta.text;
          break;
        case OutputDelta::Kind::kToolCallEnd:
          break;
      }
    }
    if (options_.logprobs) std::move(output.tokens.begin(), output.tokens.end(), std::back_inserter(choice.tokens));
  }

  // Puts the echo and the reasoning into the content, or hides the reasoning, as the request wants it.
  void ShapeContent(StepOutput& output, Choice& choice) const {
    const bool begins = !options_.echo.empty() && !choice.echoed && output.counts.completion > 0;
    if (!begins && options_.reasoning == ReasoningPlace::kField) return;
    std::vector<OutputDelta> deltas;
    const auto add = [&](std::string text) {
      deltas.push_back({.kind = OutputDelta::Kind::kContent, .text = std::move(text)});
    };
    if (begins) add(options_.echo);
    choice.echoed = choice.echoed || begins;
    const auto close_tag = [&] {
      if (std::exchange(choice.in_think_tag, false)) add("</think>");
    };
    for (OutputDelta& delta : output.deltas) {
      if (delta.kind != OutputDelta::Kind::kReasoning || options_.reasoning == ReasoningPlace::kField) {
        close_tag();
        deltas.push_back(std::move(delta));
      } else if (options_.reasoning == ReasoningPlace::kContent) {
        add((std::exchange(choice.in_think_tag, true) ? "" : "<think>") + delta.text);
      }
    }
    if (output.finish == FinishReason::kStop || output.finish == FinishReason::kToolCalls) close_tag();
    output.deltas = std::move(deltas);
  }

  // One chunk per step and choice, so that clients that count chunks get correct counts.
  void Stream(StepOutput& output, Choice& choice) {
    Json delta = Json::object();
    std::string reasoning, content;
    Json calls = Json::array();
    for (OutputDelta& d : output.deltas) {
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          reasoning += d.text;
          break;
        case OutputDelta::Kind::kContent:
          content += d.text;
          break;
        case OutputDelta::Kind::kToolCallBegin:
          choice.in_custom = IsCustom(d.text);
          choice.custom_arguments.clear();
          calls.push_back(
              {{"index", d.index}, {"id", NewId("call_")}, {"type", choice.in_custom ? "custom" : "function"}});
          calls.back()[choice.in_custom ? "custom" : "function"] = {{"name", d.text},
                                                                    {choice.in_custom ? "input" : "arguments", ""}};
          break;
        case OutputDelta::Kind::kToolCallArguments:
          if (choice.in_custom) {  // the text is inside the arguments, escaped
            choice.custom_arguments += d.text;
            break;
          }
          if (calls.empty() || calls.back()["index"] != d.index) {
            calls.push_back({{"index", d.index}, {"function", {{"arguments", ""}}}});
          }
          calls.back()["function"]["arguments"].get_ref<std::string&>() += d.text;
          break;
        case OutputDelta::Kind::kToolCallEnd:
          if (!choice.in_custom) break;
          if (calls.empty() || calls.back()["index"] != d.index)
            calls.push_back({{"index", d.index}, {"custom", {{"input", ""}}}});
          calls.back()["custom"]["input"] = CustomInput(choice.custom_arguments);
          break;
      }
    }
    const bool ended = output.finish != FinishReason::kNone;
    const bool tells = !reasoning.empty() || !content.empty() || !calls.empty();
    const bool reads = options_.progress && output.counts.completion == 0 && output.counts.read > 0;
    const bool counted = options_.logprobs || options_.continuous_usage || options_.token_ids;
    const bool wanted = tells || reads || (!output.tokens.empty() && counted);
    if (wanted || (ended && !choice.role_sent)) {
      if (!choice.role_sent) {
        delta["role"] = "assistant";
        choice.role_sent = true;
      }
      if (!reasoning.empty()) SetReasoning(&delta, reasoning);
      if (!content.empty() || (reasoning.empty() && calls.empty() && !reads)) delta["content"] = content;
      if (!calls.empty()) delta["tool_calls"] = std::move(calls);
      Chunk(output, std::move(delta), /*last=*/false);
    }
    if (ended) {
      Chunk(output, Json::object(), /*last=*/true);
    }
  }

  void Chunk(const StepOutput& output, Json delta, bool last) {
    Json choice = {{"index", output.index}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    if (options_.logprobs && !last && output.counts.completion > 0)
      choice["logprobs"] = {{"content", LogprobsToJson(api_.tokenizer, output.tokens)}, {"refusal", nullptr}};
    choice["finish_reason"] = last ? Json(FinishReasonName(output.finish)) : Json(nullptr);
    Choice& state = choices_[static_cast<size_t>(output.index)];
    if (last && !state.stop_reason.is_null()) choice["stop_reason"] = state.stop_reason;
    if (options_.token_ids) choice["token_ids"] = std::exchange(state.ids, {});
    Json chunk = {{"choices", Json::array({std::move(choice)})}};
    if (options_.token_ids && !std::exchange(prompt_sent_, true)) chunk["prompt_token_ids"] = *options_.prompt_ids;
    if (options_.progress && output.counts.completion == 0)
      chunk["prompt_progress"] = ProgressToJson(output.counts, output.times);
    if (last || options_.timings) chunk["timings"] = TimingsToJson(output.counts, output.times);
    if (options_.continuous_usage) {
      chunk["usage"] = UsageToJson(usage_.Total());
    } else if (options_.include_usage) {
      chunk["usage"] = nullptr;
    }
    EventBehind(chunk_head_, chunk);
  }

  void End() override {
    if (stream_) {
      if (options_.include_usage) {
        Json chunk = Head("chat.completion.chunk");
        chunk["choices"] = Json::array();
        chunk["usage"] = UsageToJson(usage_.Total());
        chunk["timings"] = TimingsToJson(usage_.Total(), usage_.Times());
        Event(chunk);
      }
      return Raw("data: [DONE]\n\n");
    }
    Json whole = Head("chat.completion");
    if (options_.token_ids) whole["prompt_token_ids"] = *options_.prompt_ids;
    whole["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      // The arguments of a call that was cut off are not valid JSON. Such a call is not returned, so that no client
      // carries it out.
      if (!c.calls.empty() && c.finish != FinishReason::kLength) {
        std::erase_if(c.calls.get_ref<Json::array_t&>(), [](const Json& call) {
          return !Json::accept(call["function"]["arguments"].get_ref<const std::string&>());
        });
      }
      Json message = {{"role", "assistant"}, {"content", c.content}};
      if (!c.reasoning.empty()) SetReasoning(&message, c.reasoning);
      for (Json& call : c.calls) {
        if (IsCustom(call["function"]["name"].get_ref<const std::string&>())) call = ToCustom(call);
      }
      if (!c.calls.empty()) message["tool_calls"] = std::move(c.calls);
      Json choice = {{"index", i}, {"message", std::move(message)}, {"logprobs", nullptr}};
      if (options_.logprobs)
        choice["logprobs"] = {{"content", LogprobsToJson(api_.tokenizer, c.tokens)}, {"refusal", nullptr}};
      choice["finish_reason"] = FinishReasonName(c.finish);
      if (!c.stop_reason.is_null()) choice["stop_reason"] = c.stop_reason;
      if (options_.token_ids) choice["token_ids"] = c.ids;
      whole["choices"].push_back(std::move(choice));
    }
    whole["usage"] = UsageToJson(usage_.Total());
    whole["timings"] = TimingsToJson(usage_.Total(), usage_.Times());
    whole_ = Dump(whole);
  }

  const ChatOptions options_;
  std::vector<Choice> choices_;
  const std::string id_;
  const int64_t created_;
  const std::string chunk_head_;
  bool prompt_sent_ = false;
};

// Returns the beginning of the content, which the reply continues.
std::string EchoOf(const ChatInput& input) {
  if (!input.continue_last) {
    Refuse("echo",
           "echo repeats the message that the reply continues, and the last message is not from the assistant; "
           "leave it out, or end messages with an assistant message");
  }
  const ChatInput last{.messages = Json::array({input.messages.back()}), .continue_last = true};
  return ToChatRequest(last).messages.back().content;
}

}  // namespace

void ServeChat(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Json& body = document.root();
  const Fields fields(body, "", &kChatBody);
  CheckModel(api, fields);

  GenerationParams params;
  ReadSampling(api, fields, &params);
  params.chat = true;
  ChatOptions options{ReadReplyOptions(fields)};
  params.progress = options.progress;
  options.logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs");
  if (top && *top > 0 && !options.logprobs) Refuse("top_logprobs", "top_logprobs needs logprobs: true");
  if (options.logprobs)
    params.sampling.top_logprobs = static_cast<int>(std::min(top.value_or(0), api.model.vocab_size));
  const auto max_tokens = ReadMaxTokens(fields, {"max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens"});
  options.reasoning = ReadReasoningPlace(fields);
  const OutputForm form = ReadResponseFormat(fields);
  const ChatInput input = ReadChatInput(api, fields, form, &params, &options.custom_tools);
  if (fields.Bool("echo").value_or(false)) options.echo = EchoOf(input);
  GrammarPlan plan = PlanForm(api, form, input.tools, &params);
  const ChatPrompt prompt = MakeChatPrompt(api, TenantOf(api, exchange->request()), input);
  params.thinking = prompt.starts_in_reasoning;
  const int64_t most = LimitTokens(api, prompt.ids->size(), max_tokens, ErrorForm::kOpenAi, "messages");
  if (options.token_ids) options.prompt_ids = prompt.ids;

  const auto job = std::make_shared<Job>();
  AddSequences(job.get(),
               {.prompt = prompt.ids,
                .params = std::make_shared<GenerationParams>(std::move(params)),
                .text = prompt.text,
                .max_tokens = most},
               options.n);
  RunWithGrammar(api, exchange, ErrorForm::kOpenAi, std::move(plan), job,
                 [reply = std::make_shared<ChatReply>(api, exchange, options), job] { reply->Run(job); });
}

// Returns the ids of a chat from its text alone, as any server of this model encodes it. It does not use this server's
// cached replies, which other servers do not have.
void ServeChatRender(const Api& api, const ExchangePtr& exchange) {
  const JsonDocument document = ParseJson(exchange->request().body);
  const Fields fields(document.root(), "", &kChatRenderBody);
  CheckModel(api, fields);
  const RenderedPrompt prompt = RenderChat(api, ReadChatToEncode(api, fields));
  const EncodeOptions options = EncodeOptionsOf(prompt, api.options.special_tokens_in_content);
  exchange->Respond(200, "application/json",
                    Dump({{"request_id", exchange->request().id},
                          {"model", api.options.model_name},
                          {"token_ids", api.tokenizer.Encode(prompt.text, options)}}));
}

}  // namespace dsv4::server
