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
    {"seed", kInteger, "The same seed and request give the same text.", -kMost, kMost},
    {"logit_bias", kObject, "Maps token ids to a bias for their logits, from -100 to 100."},
    {"stop", kAny, "A string or an array of strings that end the content."},
    {"include_stop_str_in_output", kBool, "true: the text includes the stop string."},
    {"stop_token_ids", kArray, "Token ids that end the reply."},
    {"ignore_eos", kBool, "true: the reply continues after the end token."},
    {"min_tokens", kInteger, "Minimum number of tokens before the reply may end.", 0, kMost},
    {"skip_special_tokens", kBool, "true: special tokens are left out of the text (default true)."},
    {"speculate", kBool, "false: no drafts; the text is the same."},
    {"use_beam_search", kRefused, ""},
    {"logits_processors", kRefused, ""},
    {"bad_words", kRefused, ""},
    {"truncate_prompt_tokens", kRefused, ""},
};

constexpr FieldSpec kReply[] = {
    {"stream", kBool, "true: the reply is sent as server-sent events."},
    {"stream_options", kObject, "include_usage: usage in a last chunk; continuous_usage_stats: usage in every chunk."},
    {"n", kInteger, "Number of choices.", 1, 128},
    {"best_of", kInteger, "Must equal n if given.", 1, kMost},
    {"timings_per_token", kBool, "true: every chunk has timings, not only the last one."},
    {"return_progress", kBool, "true: a stream reports the progress of the prompt (prompt_progress)."},
};

constexpr FieldSpec kForm[] = {
    {"response_format", kObject, "{type: text | json_object | json_schema, json_schema: {schema, strict}}"},
    {"structured_outputs", kObject, "One of json, json_object, regex, choice, grammar."},
    {"guided_json", kAny, "A JSON schema, or its text."},
    {"guided_json_object", kBool, "true: the reply is a JSON object."},
    {"guided_regex", kText, "A regular expression for the whole reply."},
    {"guided_grammar", kText, "A grammar in EBNF."},
    {"guided_choice", kArray, "Strings; the reply is one of them."},
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
    {"reasoning_effort", kText, "none, minimal, low, medium, high, xhigh, max, ultra."},
    {"reasoning", kObject, "{effort, enabled, max_tokens}, in OpenRouter's form."},
    {"thinking", kAny, "{type: enabled | disabled | adaptive, budget_tokens}, or true or false."},
    {"enable_thinking", kBool, "Turns reasoning on or off."},
    {"thinking_budget", kInteger, "Maximum number of reasoning tokens.", 0, kMost},
    {"drop_thinking", kBool, "false: without tools, too, the prompt has the reasoning of earlier turns."},
    {"chat_template_kwargs", kObject, "{thinking, enable_thinking, reasoning_effort, drop_thinking}"},
};

constexpr FieldSpec kChat[] = {
    {"max_tokens", kInteger, "Maximum number of tokens in the reply, including reasoning.", 1, kMost},
    {"max_completion_tokens", kInteger, "Another name of max_tokens.", 1, kMost},
    {"logprobs", kBool, "true: return log-probabilities of the reply's tokens."},
    {"top_logprobs", kInteger, "Number of likeliest tokens to return at each position; needs logprobs.", 0, 100},
    {"functions", kRefused, ""},
    {"function_call", kRefused, ""},
    {"prompt_logprobs", kRefused, ""},
    {"audio", kRefused, ""},
};

constexpr FieldSpec kPrompt[] = {
    {"prompt", kAny, "A text, an array of token ids, or an array of these."},
    {"add_special_tokens", kBool, "true: a text gets a BOS token at its start (default true)."},
};

constexpr FieldSpec kCompletions[] = {
    {"max_tokens", kInteger, "Maximum number of tokens in the reply (default 16); 0: none, only process the prompt.", 0,
     kMost},
    {"echo", kBool, "true: the text begins with the prompt."},
    {"logprobs", kInteger,
     "Return log-probabilities and this many likeliest tokens per position; with echo also for the prompt.", 0, 100},
    {"suffix", kRefused, ""},
    {"prompt_logprobs", kRefused, ""},
};

constexpr FieldSpec kResponses[] = {
    {"input", kAny, "A text, or an array of items: messages, reasoning, calls and their outputs."},
    {"instructions", kText, "The system text."},
    {"previous_response_id", kText, "The id of a stored response (--store-responses) whose conversation continues."},
    {"store", kBool, "false: this response is not stored."},
    {"tools", kArray, "Functions, custom tools, and namespaces of them."},
    {"tool_choice", kAny, "none, auto, required, a function by name, or allowed_tools."},
    {"parallel_tool_calls", kBool, "false: at most one call per reply."},
    {"reasoning", kObject, "{effort}"},
    {"text", kObject, "{format: {type: text | json_object | json_schema, schema, strict}}"},
    {"max_output_tokens", kInteger, "Maximum number of tokens in the reply, including reasoning.", 1, kMost},
    {"top_logprobs", kInteger,
     "Return log-probabilities of the text's tokens, and of this many likeliest tokens at each position.", 0, 100},
    {"include", kArray, "message.output_text.logprobs; other values are ignored."},
    {"metadata", kAny, "Returned with the response."},
    {"stream", kBool, "true: the reply is sent as server-sent events."},
    {"background", kRefused, ""},
    {"conversation", kRefused, ""},
    {"prompt", kRefused, ""},
};

constexpr FieldSpec kMessages[] = {
    {"system", kAny, "A text, or an array of text blocks."},
    {"messages", kArray, "Role and content: a text, or blocks of text, thinking, tool_use, tool_result and documents."},
    {"tools", kArray, "{name, description, input_schema}"},
    {"tool_choice", kObject, "{type: auto | any | tool | none, name, disable_parallel_tool_use}"},
    {"thinking", kObject, "{type: enabled | disabled | adaptive, budget_tokens}"},
    {"output_config", kObject, "{effort, format}"},
    {"output_format", kObject, "{type: json_schema, schema}"},
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

const BodySpec kChatBody = {body_tables::kModel,    body_tables::kChatInput, body_tables::kChat,
                            body_tables::kSampling, body_tables::kReply,     body_tables::kForm};
const BodySpec kCompletionsBody = {body_tables::kModel,    body_tables::kPrompt, body_tables::kCompletions,
                                   body_tables::kSampling, body_tables::kReply,  body_tables::kForm};
const BodySpec kResponsesBody = {body_tables::kModel, body_tables::kResponses, body_tables::kSampling};
const BodySpec kMessagesBody = {body_tables::kModel, body_tables::kMessages, body_tables::kMessagesReply};
const BodySpec kCountTokensBody = {body_tables::kModel, body_tables::kMessages};
const BodySpec kTokenizeBody = {body_tables::kModel, body_tables::kTokenize, body_tables::kChatInput,
                                body_tables::kForm};
const BodySpec kDetokenizeBody = {body_tables::kModel, body_tables::kDetokenize};
const BodySpec kChatRenderBody = {body_tables::kModel, body_tables::kChatInput, body_tables::kForm};
const BodySpec kCompletionsRenderBody = {body_tables::kModel, body_tables::kPrompt};

}  // namespace dsv4::server
