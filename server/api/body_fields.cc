#include "server/api/body_fields.h"

namespace dsv4::server {

// Tables that several bodies share.
namespace body_tables {

using enum FieldKind;

constexpr double kMost = 1e30;  // no bound

constexpr FieldSpec kModel[] = {
    {"model", kText, "Any name, unless the server has --strict-model. Replies have the first served name."},
};

constexpr FieldSpec kSampling[] = {
    {"temperature", kNumber, "0: always the likeliest token.", 0, 100},
    {"top_p", kNumber, "Sample from the likeliest tokens that together have this probability; 0: only the likeliest.",
     0, 1},
    {"top_k", kInteger, "Sample from this many likeliest tokens; 0 or -1: all.", -1, kMost},
    {"min_p", kNumber, "Minimum probability, relative to the likeliest token.", 0, 1},
    {"presence_penalty", kNumber,
     "Subtracted from the logits of tokens already in the reply; reasoning does not count.", -2, 2},
    {"frequency_penalty", kNumber, "Subtracted once per occurrence of the token in the reply.", -2, 2},
    {"repetition_penalty", kNumber, "Divides the logits of tokens in the prompt or reply.", 1e-6, kMost},
    {"repeat_penalty", kNumber, "Another name of repetition_penalty.", 1e-6, kMost},
    {"repeat_last_n", kInteger, "-1: the repetition penalty counts all tokens; 0: there is no such penalty.", -1,
     kMost},
    {"do_sample", kBool, "false: always the likeliest token."},
    {"seed", kInteger, "The same seed and request give the same text.", -kMost, kMost},
    {"logit_bias", kObject, "Maps token ids to a bias for their logits, from -100 to 100."},
    {"allowed_token_ids", kArray,
     "The only token ids that the reply may have; without the end token it ends at max_tokens."},
    {"stop", kAny, "A string or an array of strings that end the content."},
    {"include_stop_str_in_output", kBool, "true: the text includes the stop string."},
    {"stop_token_ids", kArray, "Token ids that end the reply."},
    {"ignore_eos", kBool, "true: the reply continues after the end token."},
    {"min_tokens", kInteger, "Minimum number of tokens before the reply may end.", 0, kMost},
    {"min_new_tokens", kInteger, "Another name of min_tokens.", 0, kMost},
    {"skip_special_tokens", kBool, "true: special tokens are left out of the text (default true)."},
    {"speculate", kBool, "false: no drafts; the text is the same."},
};

// Samplers and bans of other servers.
constexpr FieldSpec kOtherSamplers[] = {
    {"mirostat", kRefused, "use temperature, top_p or min_p"},
    {"mirostat_mode", kRefused, "use temperature, top_p or min_p"},
    {"dry_multiplier", kRefused, "use frequency_penalty or repetition_penalty"},
    {"xtc_probability", kRefused, "use temperature and min_p"},
    {"typical_p", kRefused, "use top_p or min_p", 1, kMost},
    {"typical", kRefused, "use top_p or min_p", 1, kMost},
    {"tfs_z", kRefused, "use top_p or min_p", 1, kMost},
    {"tfs", kRefused, "use top_p or min_p", 1, kMost},
    {"top_a", kRefused, "use min_p"},
    {"top_n_sigma", kRefused, "use min_p", -kMost, 0},
    {"nsigma", kRefused, "use min_p", -kMost, 0},
    {"min_keep", kRefused, "use top_k", 0, 1},
    {"dynatemp_range", kRefused, "use temperature"},
    {"dynamic_temperature", kRefused, "use temperature"},
    {"smoothing_factor", kRefused, "use temperature"},
    {"temperature_last", kRefused, "the temperature comes before top_k, top_p and min_p"},
    {"samplers", kRefused, "the order is penalties, temperature, top_k, top_p, min_p"},
    {"sampler_priority", kRefused, "the order is penalties, temperature, top_k, top_p, min_p"},
    {"sampler_order", kRefused, "the order is penalties, temperature, top_k, top_p, min_p"},
    {"no_repeat_ngram_size", kRefused, "use frequency_penalty or repetition_penalty"},
    {"repetition_detection", kRefused, "use frequency_penalty or repetition_penalty"},
    {"encoder_repetition_penalty", kRefused, "use repetition_penalty", 1, 1},
    {"penalty_alpha", kRefused, "use temperature, top_p or min_p"},
    {"epsilon_cutoff", kRefused, "use min_p"},
    {"eta_cutoff", kRefused, "use min_p"},
    {"guidance_scale", kRefused, "say in the prompt what the reply must not have", 1, 1},
    {"cfg_scale", kRefused, "say in the prompt what the reply must not have", 1, 1},
    {"negative_prompt", kRefused, "say in the prompt what the reply must not have"},
    {"use_beam_search", kRefused, "sample, with n for several choices"},
    {"num_beams", kRefused, "sample, with n for several choices", 0, 1},
    {"logits_processors", kRefused, "use logit_bias"},
    {"custom_logit_processor", kRefused, "use logit_bias"},
    {"bad_words", kRefused, "use logit_bias"},
    {"banned_strings", kRefused, "use logit_bias"},
    {"banned_tokens", kRefused, "use logit_bias"},
    {"custom_token_bans", kRefused, "use logit_bias"},
    {"ban_eos_token", kRefused, "use ignore_eos or min_tokens"},
    {"token_healing", kRefused, "end the prompt before a word"},
    {"stop_regex", kRefused, "use stop"},
    {"no_stop_trim", kRefused, "use include_stop_str_in_output"},
    {"t_max_predict_ms", kRefused, "use max_tokens"},
    {"n_indent", kRefused, "use regex"},
    {"n_probs", kRefused, "use logprobs"},
    {"post_sampling_probs", kRefused, "log-probabilities are those before sampling"},
    {"return_tokens", kRefused, "use return_token_ids"},
    {"return_tokens_as_token_ids", kRefused, "use return_token_ids"},
    {"grammar_lazy", kRefused, "use structural_tag with triggers"},
    {"grammar_triggers", kRefused, "use structural_tag with triggers"},
    {"regex_pattern", kRefused, "use regex"},
    {"grammar_string", kRefused, "use grammar"},
    {"custom_params", kRefused, "use logit_bias"},
    {"adaptive_target", kRefused, "use temperature, top_p or min_p", -kMost, 0},
    {"min_temp", kRefused, "use temperature", 1, 1},
    {"max_temp", kRefused, "use temperature", 1, 1},
    {"skew", kRefused, "use temperature, top_p or min_p"},
    {"penalty_range", kRefused, "use repeat_last_n", -kMost, 0},
    {"num_predict", kRefused, "use max_tokens", -kMost, 0},
    {"logprob_token_ids", kRefused, "use top_logprobs"},
    {"return_prompt_token_ids", kRefused, "use return_token_ids"},
    {"return_meta_info", kRefused, "read usage and logprobs"},
    {"return_routed_experts", kRefused, "the API returns tokens and log-probabilities only"},
    {"response_fields", kRefused, "read the fields from the whole reply"},
};

// Other models, prompts from elsewhere and places in a queue.
constexpr FieldSpec kOtherEngines[] = {
    {"kv_transfer_params", kRefused, "this server computes every prompt itself"},
    {"bootstrap_host", kRefused, "this server computes every prompt itself"},
    {"bootstrap_room", kRefused, "this server computes every prompt itself"},
    {"cache_salt", kRefused, "give each tenant an API key; each key has a prefix cache of its own"},
    {"extra_key", kRefused, "give each tenant an API key; each key has a prefix cache of its own"},
    {"lora_path", kRefused, "this server has one model and no adapters"},
    {"lora", kRefused, "this server has one model and no adapters"},
    {"adapter_id", kRefused, "this server has one model and no adapters"},
    {"input_ids", kRefused, "send token ids as the prompt of /v1/completions"},
    {"input_embeds", kRefused, "send text or token ids"},
    {"prompt_embeds", kRefused, "send text or token ids"},
    {"image_data", kRefused, "this model reads text only"},
    {"session_params", kRefused, "send the whole conversation"},
    {"vllm_xargs", kRefused, "this server has no plug-ins"},
    {"return_hidden_states", kRefused, "the API returns tokens and log-probabilities only"},
    {"priority", kRefused, "requests are served in the order of their arrival"},
    {"truncate_prompt_tokens", kRefused, "send a prompt that fits"},
    {"transforms", kRefused, "send a prompt that fits"},
    {"guardrails", kRefused, "this server has no guardrails; check texts before and after"},
    {"preset", kRefused, "send its fields"},
    {"options", kRefused, "send its members as fields of the body"},
    {"format", kRefused, "use response_format"},
};

constexpr FieldSpec kReply[] = {
    {"stream", kBool, "true: the reply is sent as server-sent events."},
    {"stream_options", kObject, "include_usage: usage in a last chunk; continuous_usage_stats: usage in every chunk."},
    {"n", kInteger, "Number of choices.", 1, 128},
    {"best_of", kInteger, "Must equal n if given.", 1, kMost},
    {"timings_per_token", kBool, "true: every chunk has timings, not only the last one."},
    {"return_progress", kBool, "true: a stream reports the progress of the prompt (prompt_progress)."},
    {"return_token_ids", kBool,
     "true: also return the ids of the prompt (prompt_token_ids) and the reply (token_ids)."},
    {"n_predict", kInteger, "Another name of max_tokens; -1: no limit.", -2, kMost},
    {"max_new_tokens", kInteger, "Another name of max_tokens.", 1, kMost},
};

constexpr FieldSpec kForm[] = {
    {"response_format", kObject,
     "{type: text | json_object | json_schema | structural_tag, schema, json_schema: {schema, strict}, format}"},
    {"structured_outputs", kObject, "One of json, json_object, regex, choice, grammar, structural_tag."},
    {"guided_json", kAny, "A JSON schema, or its text."},
    {"guided_json_object", kBool, "true: the reply is a JSON object."},
    {"guided_regex", kText, "A regular expression for the whole reply."},
    {"guided_grammar", kText, "A grammar in EBNF."},
    {"guided_choice", kArray, "Strings; the reply is one of them."},
    {"regex", kText, "Another name of guided_regex."},
    {"ebnf", kText, "Another name of guided_grammar."},
    {"grammar", kText, "Another name of guided_grammar."},
    {"json_schema", kAny, "Another name of guided_json."},
    {"structural_tag", kAny,
     "{format}, or {structures: [{begin, schema, end}], triggers}, or the text of one; XGrammar's."},
    {"guided_whitespace_pattern", kRefused, "white space in JSON has a bound without it"},
};

constexpr FieldSpec kChatInput[] = {
    {"messages", kArray,
     "Role, content (a text or parts), tool_calls, tool_call_id, reasoning_content. The reply "
     "continues a last assistant message."},
    {"tools", kArray, "Functions and custom tools."},
    {"tool_choice", kAny, "none, auto, required, a function or custom tool by name, or allowed_tools."},
    {"parallel_tool_calls", kBool, "false: at most one call per reply."},
    {"continue_final_message", kBool,
     "true: the reply continues the last message, which is an assistant message; false: it is another turn."},
    {"add_generation_prompt", kBool, "false only with continue_final_message."},
    {"documents", kRefused, "put their text in a message"},
    {"chat_template", kRefused,
     "the prompt has the form that the model was trained on; use /v1/completions for others"},
};

constexpr FieldSpec kThinking[] = {
    {"reasoning_effort", kText, "none, minimal, low, medium, high, xhigh, max, ultra."},
    {"reasoning", kObject,
     "{effort, enabled, max_tokens, exclude}, in OpenRouter's form; on /v1/responses also summary."},
    {"thinking", kAny, "{type: enabled | disabled | adaptive, budget_tokens}, or true or false."},
    {"enable_thinking", kBool, "Turns reasoning on or off."},
    {"think", kAny, "true, false or an effort, as in Ollama."},
    {"thinking_budget", kInteger, "Maximum number of reasoning tokens; 0: no reasoning; -1: no limit.", -1, kMost},
    {"thinking_token_budget", kInteger, "Another name of thinking_budget.", -1, kMost},
    {"thinking_budget_tokens", kInteger, "Another name of thinking_budget.", -1, kMost},
    {"drop_thinking", kBool, "false: without tools, too, the prompt has the reasoning of earlier turns."},
    {"chat_template_kwargs", kObject, "{thinking, enable_thinking, reasoning_effort, thinking_budget, drop_thinking}"},
};

constexpr FieldSpec kChat[] = {
    {"max_tokens", kInteger, "Maximum number of tokens in the reply, including reasoning.", 1, kMost},
    {"max_completion_tokens", kInteger, "Another name of max_tokens.", 1, kMost},
    {"logprobs", kBool, "true: return log-probabilities of the reply's tokens."},
    {"top_logprobs", kInteger, "Number of likeliest tokens to return at each position; needs logprobs.", 0, 100},
    {"include_reasoning", kBool, "false: the reply does not show its reasoning."},
    {"separate_reasoning", kBool, "false: the content begins with the reasoning, in <think> tags."},
    {"reasoning_format", kText,
     "none, raw: as separate_reasoning false; hidden: as include_reasoning false; or the default."},
    {"echo", kBool, "true: the content begins with the last message, which the reply continues."},
    {"functions", kRefused, "use tools"},
    {"function_call", kRefused, "use tool_choice"},
    {"prompt_logprobs", kRefused, "use /v1/completions with echo and logprobs"},
    {"audio", kRefused, "this model reads and writes text only"},
    {"modalities", kRefused, "this model reads and writes text only", 0, 0, R"([["text"], [], "text"])"},
    {"web_search_options", kRefused, "this server searches nothing; offer a search tool in tools", 0, 0, "[false]"},
    {"enable_search", kRefused, "this server searches nothing; offer a search tool in tools"},
    {"search_parameters", kRefused, "this server searches nothing; offer a search tool in tools", 0, 0,
     R"([{"mode": "off"}, {}, false])"},
    {"plugins", kRefused, "this server runs no plug-ins; offer tools"},
    {"parse_tool_calls", kRefused, "use tool_choice none to get calls as text", 0, 0, "[true]"},
    {"system", kRefused, "send a message with the role system"},
    {"tool_prompt", kRefused, "put its text in a message"},
    {"guideline", kRefused, "put its text in a message"},
    {"response_prefix", kRefused, "end messages with an assistant message"},
    {"template_vars", kRefused, "use chat_template_kwargs"},
    {"prompt_id", kRefused, "this server has no prompt templates"},
    {"deferred", kRefused, "this server only answers while the client waits"},
    {"enable_code_interpreter", kRefused, "this server runs no code; offer tools"},
    {"stream_reasoning", kRefused, "leave it out; reasoning is streamed", 0, 0, "[true]"},
};

constexpr FieldSpec kPrompt[] = {
    {"prompt", kAny, "A text, an array of token ids, or an array of these."},
    {"suffix", kText, "The reply is the text between the prompt and this text; the tokenizer must have FIM tokens."},
    {"add_special_tokens", kBool, "true: a text gets a BOS token at its start (default true)."},
};

constexpr FieldSpec kCompletions[] = {
    {"max_tokens", kInteger, "Maximum number of tokens in the reply (default 16); 0: none, only process the prompt.", 0,
     kMost},
    {"echo", kBool, "true: the text begins with the prompt."},
    {"logprobs", kInteger,
     "Return log-probabilities and this many likeliest tokens per position; with echo also for the prompt.", 0, 100},
    {"prompt_logprobs", kRefused, "use echo with logprobs"},
    {"add_bos_token", kRefused, "use add_special_tokens", 0, 0, "[true]"},
    {"input_extra", kRefused, "put its text in the prompt"},
    {"response_prefix", kRefused, "put its text at the end of the prompt"},
};

constexpr FieldSpec kResponsesInput[] = {
    {"input", kAny, "A text, or an array of items: messages, reasoning, calls and their outputs."},
    {"instructions", kText, "The system text."},
    {"previous_response_id", kText, "The id of a stored response (--store-responses) whose conversation continues."},
    {"tools", kArray, "Functions, custom tools, and namespaces of them."},
    {"tool_choice", kAny, "none, auto, required, a function by name, or allowed_tools."},
    {"parallel_tool_calls", kBool, "false: at most one call per reply."},
    {"text", kObject, "{format: {type: text | json_object | json_schema, schema, strict}}"},
    {"conversation", kRefused, "this server stores no conversations; send the whole input"},
    {"prompt", kRefused, "this server has no prompt templates"},
    {"messages", kRefused, "use input"},
    {"response_format", kRefused, "use text.format"},
};

constexpr FieldSpec kResponses[] = {
    {"include_reasoning", kBool, "false: the reply does not show its reasoning."},
    {"store", kBool, "false: this response is not stored."},
    {"max_output_tokens", kInteger, "Maximum number of tokens in the reply, including reasoning.", 1, kMost},
    {"top_logprobs", kInteger,
     "Return log-probabilities of the text's tokens, and of this many likeliest tokens at each position.", 0, 100},
    {"include", kArray, "message.output_text.logprobs, reasoning.encrypted_content; other values are ignored."},
    {"metadata", kAny, "Returned with the response."},
    {"stream", kBool, "true: the reply is sent as server-sent events."},
    {"background", kRefused, "this server only answers while the client waits"},
    {"max_tool_calls", kRefused, "this server runs no tools; use parallel_tool_calls"},
    {"context_management", kRefused, "use /v1/responses/compact or a compaction_trigger item"},
    {"n", kRefused, "a response has one reply", 0, 1},
    {"max_tokens", kRefused, "use max_output_tokens"},
    {"max_completion_tokens", kRefused, "use max_output_tokens"},
    {"logprobs", kRefused, "use include: [\"message.output_text.logprobs\"]"},
    {"structured_outputs", kRefused, "use text.format"},
    {"guided_json", kRefused, "use text.format"},
    {"json_schema", kRefused, "use text.format"},
    {"regex", kRefused, "use /v1/chat/completions"},
    {"ebnf", kRefused, "use /v1/chat/completions"},
    {"grammar", kRefused, "use /v1/chat/completions"},
    {"structural_tag", kRefused, "use /v1/chat/completions"},
};

constexpr FieldSpec kMessages[] = {
    {"system", kAny, "A text, or an array of text blocks."},
    {"messages", kArray, "Role and content: a text, or blocks of text, thinking, tool_use, tool_result and documents."},
    {"tools", kArray, "{name, description, input_schema}"},
    {"tool_choice", kObject, "{type: auto | any | tool | none, name, disable_parallel_tool_use}"},
    {"thinking", kObject, "{type: enabled | disabled | adaptive, budget_tokens}"},
    {"output_config", kObject, "{effort, format}"},
    {"output_format", kObject, "{type: json_schema, schema}"},
    {"mcp_servers", kRefused, "this server calls no other servers; offer their tools in tools"},
    {"container", kRefused, "this server runs no code; offer tools"},
    {"response_format", kRefused, "use output_config.format"},
    {"stop", kRefused, "use stop_sequences"},
    {"chat_template_kwargs", kRefused, "use thinking"},
};

constexpr FieldSpec kMessagesReply[] = {
    {"max_tokens", kInteger, "Maximum number of tokens in the reply, including reasoning.", 1, kMost},
    {"temperature", kNumber, "0: always the likeliest token.", 0, 2},
    {"top_p", kNumber, "Sample from the likeliest tokens that together have this probability; 0: only the likeliest.",
     0, 1},
    {"top_k", kInteger, "Sample from this many likeliest tokens; 0: all.", 0, kMost},
    {"seed", kInteger, "The same seed and request give the same text.", 0, kMost},
    {"stop_sequences", kAny, "A string or an array of strings that end the content."},
    {"speculate", kBool, "false: no drafts; the text is the same."},
    {"stream", kBool, "true: the reply is sent as server-sent events."},
};

constexpr FieldSpec kTokenize[] = {
    {"prompt", kText, "A text. Send the fields of a chat instead to encode a chat."},
    {"add_special_tokens", kBool, "true: a text gets a BOS token at its start (default true)."},
    {"return_token_strs", kBool, "true: also return the texts of the tokens."},
};

constexpr FieldSpec kDetokenize[] = {
    {"tokens", kArray, "Token ids."},
};

}  // namespace body_tables

const BodySpec kChatBody = {body_tables::kModel, body_tables::kChatInput,     body_tables::kThinking,
                            body_tables::kChat,  body_tables::kSampling,      body_tables::kReply,
                            body_tables::kForm,  body_tables::kOtherSamplers, body_tables::kOtherEngines};
const BodySpec kCompletionsBody = {body_tables::kModel,         body_tables::kPrompt,      body_tables::kCompletions,
                                   body_tables::kSampling,      body_tables::kReply,       body_tables::kForm,
                                   body_tables::kOtherSamplers, body_tables::kOtherEngines};
const BodySpec kResponsesBody = {body_tables::kModel,       body_tables::kResponsesInput, body_tables::kThinking,
                                 body_tables::kResponses,   body_tables::kSampling,       body_tables::kOtherSamplers,
                                 body_tables::kOtherEngines};
const BodySpec kResponsesPromptBody = {body_tables::kModel, body_tables::kResponsesInput, body_tables::kThinking};
const BodySpec kMessagesBody = {body_tables::kModel, body_tables::kMessages, body_tables::kMessagesReply,
                                body_tables::kOtherEngines};
const BodySpec kCountTokensBody = {body_tables::kModel, body_tables::kMessages};
const BodySpec kTokenizeBody = {body_tables::kModel, body_tables::kTokenize, body_tables::kChatInput,
                                body_tables::kThinking, body_tables::kForm};
const BodySpec kDetokenizeBody = {body_tables::kModel, body_tables::kDetokenize};
const BodySpec kChatRenderBody = {body_tables::kModel, body_tables::kChatInput, body_tables::kThinking,
                                  body_tables::kForm};
const BodySpec kCompletionsRenderBody = {body_tables::kModel, body_tables::kPrompt};

}  // namespace dsv4::server
