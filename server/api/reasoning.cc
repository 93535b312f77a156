#include "server/api/reasoning.h"

#include <optional>
#include <string>

namespace dsv4::server {

namespace {

// The settings of a request. Later fields replace earlier ones.
struct Asked {
  std::optional<bool> thinking;
  std::optional<ReasoningEffort> effort;
  std::optional<int64_t> budget;
};

void ReadEffort(const Api& api, const std::optional<std::string>& effort, const std::string& param, Asked* asked) {
  if (!effort) return;
  asked->thinking = *effort != "none";
  if (*asked->thinking) asked->effort = MapEffort(api, *effort, param);
}

// reasoning: {effort, enabled, max_tokens} (OpenRouter; OpenAI's responses have the effort).
void ReadReasoningObject(const Api& api, const Fields& in, Asked* asked) {
  ReadEffort(api, in.Text("effort"), "reasoning.effort", asked);
  if (const auto on = in.Bool("enabled")) asked->thinking = *on;
  if (const auto budget = in.Integer("max_tokens", 0)) asked->budget = *budget;
}

// The arguments of vLLM's and SGLang's chat templates.
void ReadTemplateArguments(const Api& api, const Fields& in, Asked* asked) {
  if (const auto effort = in.Text("reasoning_effort"); effort && *effort != "none") {
    asked->effort = MapEffort(api, *effort, "chat_template_kwargs.reasoning_effort");
  } else if (effort) {
    asked->thinking = false;
  }
  for (const char* name : {"thinking", "enable_thinking"}) {
    if (const auto on = in.Bool(name)) asked->thinking = *on;
  }
  if (const auto budget = in.Integer("thinking_budget", -1)) asked->budget = *budget;
}

// thinking: true, or {type, budget_tokens} (DeepSeek, Anthropic).
void ReadThinking(const Json& thinking, Asked* asked) {
  if (thinking.is_boolean()) {
    asked->thinking = thinking.get<bool>();
    return;
  }
  const Fields in(thinking, "thinking");
  const std::string type = in.Text("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    Refuse("thinking", "thinking.type is \"" + type + "\"; expected enabled or disabled");
  }
  asked->thinking = type != "disabled";
  if (const auto budget = in.Integer("budget_tokens", 0)) asked->budget = *budget;
}

}  // namespace

Reasoning ReadReasoning(const Api& api, const Fields& fields, GenerationParams* params) {
  Asked asked;
  ReadEffort(api, fields.Text("reasoning_effort"), "reasoning_effort", &asked);
  if (const Json* in = fields.Object("reasoning")) ReadReasoningObject(api, Fields(*in, "reasoning"), &asked);
  if (const Json* in = fields.Object("chat_template_kwargs"))
    ReadTemplateArguments(api, Fields(*in, "chat_template_kwargs"), &asked);
  if (const auto on = fields.Bool("enable_thinking")) asked.thinking = *on;
  if (const Json* think = fields.Get("think")) {  // Ollama
    if (think->is_boolean()) {
      asked.thinking = think->get<bool>();
    } else {
      ReadEffort(api, fields.Text("think"), "think", &asked);
    }
  }
  if (const Json* thinking = fields.Get("thinking")) ReadThinking(*thinking, &asked);
  for (const char* name : {"thinking_budget_tokens", "thinking_token_budget", "thinking_budget"}) {
    if (const auto budget = fields.Integer(name)) asked.budget = *budget;
  }
  if (asked.budget == 0) asked.thinking = false;
  if (asked.budget && *asked.budget > 0) params->thinking_budget = *asked.budget;
  Reasoning reasoning = DefaultReasoning(api);
  if (asked.thinking) reasoning.thinking = *asked.thinking;
  if (asked.effort) reasoning.effort = *asked.effort;
  return reasoning;
}

bool ReadDropThinking(const Fields& fields) {
  const Json* kwargs = fields.Object("chat_template_kwargs");
  const auto inner = kwargs == nullptr ? std::nullopt : Fields(*kwargs, "chat_template_kwargs").Bool("drop_thinking");
  return inner.value_or(fields.Bool("drop_thinking").value_or(true));
}

ReasoningPlace ReadIncludeReasoning(const Fields& fields) {
  const Json* in = fields.Object("reasoning");
  const bool excluded = in != nullptr && Fields(*in, "reasoning").Bool("exclude").value_or(false);
  const bool hidden = excluded || !fields.Bool("include_reasoning").value_or(true);
  return hidden ? ReasoningPlace::kNowhere : ReasoningPlace::kField;
}

ReasoningPlace ReadReasoningPlace(const Fields& fields) {
  bool hidden = ReadIncludeReasoning(fields) == ReasoningPlace::kNowhere;
  bool in_content = !fields.Bool("separate_reasoning").value_or(true);
  if (const auto format = fields.Text("reasoning_format"); format && !format->empty()) {  // llama.cpp, Groq
    if (*format == "none" || *format == "raw") {
      in_content = true;
    } else if (*format == "hidden") {
      hidden = true;
    } else if (*format != "auto" && *format != "deepseek" && *format != "parsed") {
      Refuse("reasoning_format",
             "reasoning_format is \"" + *format + "\"; expected auto, deepseek, parsed, none, raw or hidden");
    }
  }
  if (hidden && in_content) {
    Refuse("separate_reasoning",
           "the request both hides the reasoning and wants it in the content (separate_reasoning, reasoning_format); "
           "send only one of them");
  }
  return hidden ? ReasoningPlace::kNowhere : in_content ? ReasoningPlace::kContent : ReasoningPlace::kField;
}

}  // namespace dsv4::server
