#include "server/api/body_fields.h"

namespace dsv4::server {

// Of each part that bodies share.
namespace body_tables {

using enum FieldKind;

constexpr double kMost = 1e30;  // no bound of its own

constexpr FieldSpec kModel[] = {
    {"model", kText, "Any name will do, unless the server has --strict-model; replies have the first served name."},
};

constexpr FieldSpec kSampling[] = {
    {"temperature", kNumber, "0: the likeliest token, always.", 0, 100},
    {"top_p", kNumber, "Of the likeliest tokens, those that have this probability together; 0: one.", 0, 1},
    {"top_k", kInteger, "Of the likeliest tokens, so many; 0 and -1: all.", -1, kMost},
    {"min_p", kNumber, "No token less likely than this share of the likeliest.", 0, 1},
    {"presence_penalty", kNumber, "Taken from the logits of tokens that were written; not of reasoning.", -2, 2},
    {"frequency_penalty", kNumber, "The same, as often as they were written.", -2, 2},
    {"repetition_penalty", kNumber, "Divides logits of tokens of prompt and reply.", 1e-6, kMost},
    {"seed", kInteger, "The same seed gives the same text.", -kMost, kMost},
    {"logit_bias", kObject, "Token ids to what is added to their logits, from -100 to 100."},
    {"stop", kAny, "A string or several, where the content ends."},
    {"include_stop_str_in_output", kBool, "The stop string is part of the text."},
    {"stop_token_ids", kArray, "Token ids that end the reply."},
    {"ignore_eos", kBool, "The reply goes on behind its end."},
    {"min_tokens", kInteger, "No end before so many tokens.", 0, kMost},
    {"skip_special_tokens", kBool, "Special tokens have no text (default true)."},
    {"speculate", kBool, "false: no drafts; the text is the same."},
    {"use_beam_search", kRefused, ""},
    {"logits_processors", kRefused, ""},
    {"bad_words", kRefused, ""},
    {"truncate_prompt_tokens", kRefused, ""},
};

constexpr FieldSpec kReply[] = {
    {"stream", kBool, "The reply comes as server-sent events."},
    {"stream_options", kObject, "include_usage: a last chunk with usage; continuous_usage_stats: in every chunk."},
    {"n", kInteger, "Choices.", 1, 128},
    {"best_of", kInteger, "As n, or left out.", 1, kMost},
    {"timings_per_token", kBool, "Every chunk has timings, not the last one alone."},
    {"return_progress", kBool, "A stream tells how far the prompt is read (prompt_progress)."},
};

constexpr FieldSpec kForm[] = {
    {"response_format", kObject, "{type: text | json_object | json_schema, json_schema: {schema, strict}}"},
    {"structured_outputs", kObject, "One of json, json_object, regex, choice, grammar."},
    {"guided_json", kAny, "A schema, or its text."},
    {"guided_json_object", kBool, "Any JSON object."},
    {"guided_regex", kText, "A regular expression."},
    {"guided_grammar", kText, "A grammar in EBNF."},
    {"guided_choice", kArray, "Strings, of which the reply is one."},
};

constexpr FieldSpec kChatInput[] = {
    {"messages", kArray,
     "Role, content (a text or parts), tool_calls, tool_call_id, reasoning_content; prefix: true "
     "on a last assistant's has it continued."},
    {"tools", kArray, "Functions and custom tools."},
    {"tool_choice", kAny, "none, auto, required, a named function or custom tool, allowed_tools."},
    {"parallel_tool_calls", kBool, "false: the reply ends after one call."},
    {"continue_final_message", kBool, "The last message, an assistant's, is the beginning of the reply."},
    {"add_generation_prompt", kBool, "false with continue_final_message only."},
    {"reasoning_effort", kText, "none, minimal, low, medium, high, xhigh, max, ultra."},
    {"reasoning", kObject, "{effort, enabled, max_tokens}, as OpenRouter has it."},
    {"thinking", kAny, "{type: enabled | disabled | adaptive, budget_tokens}, or a truth value."},
    {"enable_thinking", kBool, "Reasoning on or off."},
    {"thinking_budget", kInteger, "Reasoning ends after so many tokens.", 0, kMost},
    {"chat_template_kwargs", kObject, "{thinking, enable_thinking, reasoning_effort}"},
};

constexpr FieldSpec kChat[] = {
    {"max_tokens", kInteger, "Of the reply, reasoning included.", 1, kMost},
    {"max_completion_tokens", kInteger, "The same.", 1, kMost},
    {"logprobs", kBool, "Log-probabilities of the reply's tokens."},
    {"top_logprobs", kInteger, "And of the likeliest ones in their places.", 0, 100},
    {"functions", kRefused, ""},
    {"function_call", kRefused, ""},
    {"prompt_logprobs", kRefused, ""},
    {"audio", kRefused, ""},
};

constexpr FieldSpec kPrompt[] = {
    {"prompt", kAny, "A text, token ids, or a list of either."},
    {"add_special_tokens", kBool, "A text gets BOS in front (default true)."},
};

constexpr FieldSpec kCompletions[] = {
    {"max_tokens", kInteger, "Default 16; 0: the prompt is only read.", 0, kMost},
    {"echo", kBool, "The prompt is part of the text."},
    {"logprobs", kInteger, "Log-probabilities, and so many likeliest tokens; with echo the prompt's, too.", 0, 100},
    {"suffix", kRefused, ""},
    {"prompt_logprobs", kRefused, ""},
};

constexpr FieldSpec kResponses[] = {
    {"input", kAny, "A text, or items: messages, reasoning, calls and their outputs."},
    {"instructions", kText, "The system text."},
    {"previous_response_id", kText, "A response that was kept (--store-responses), whose conversation goes on."},
    {"store", kBool, "false: this one is not kept."},
    {"tools", kArray, "Functions, custom tools, namespaces of them."},
    {"tool_choice", kAny, "none, auto, required, a named function, allowed_tools."},
    {"parallel_tool_calls", kBool, "false: the reply ends after one call."},
    {"reasoning", kObject, "{effort}"},
    {"text", kObject, "{format: {type: text | json_object | json_schema, schema, strict}}"},
    {"max_output_tokens", kInteger, "Of the reply, reasoning included.", 1, kMost},
    {"top_logprobs", kInteger, "Log-probabilities of the text's tokens and of so many likeliest ones.", 0, 100},
    {"include", kArray, "message.output_text.logprobs; others are passed over."},
    {"metadata", kAny, "Comes back with the response."},
    {"stream", kBool, "The reply comes as server-sent events."},
    {"background", kRefused, ""},
    {"conversation", kRefused, ""},
    {"prompt", kRefused, ""},
};

constexpr FieldSpec kMessages[] = {
    {"system", kAny, "A text, or blocks of it."},
    {"messages", kArray, "Blocks: text, thinking, tool_use, tool_result, documents."},
    {"tools", kArray, "{name, description, input_schema}"},
    {"tool_choice", kObject, "{type: auto | any | tool | none, name, disable_parallel_tool_use}"},
    {"thinking", kObject, "{type: enabled | disabled | adaptive, budget_tokens}"},
    {"output_config", kObject, "{effort, format}"},
    {"output_format", kObject, "{type: json_schema, schema}"},
};

constexpr FieldSpec kMessagesReply[] = {
    {"max_tokens", kInteger, "Of the reply, reasoning included.", 1, kMost},
    {"temperature", kNumber, "0: the likeliest token, always.", 0, 2},
    {"top_p", kNumber, "Of the likeliest tokens, those that have this probability together; 0: one.", 0, 1},
    {"top_k", kInteger, "Of the likeliest tokens, so many; 0: all.", 0, kMost},
    {"seed", kInteger, "The same seed gives the same text.", 0, kMost},
    {"stop_sequences", kAny, "Strings where the content ends."},
    {"speculate", kBool, "false: no drafts; the text is the same."},
    {"stream", kBool, "The reply comes as server-sent events."},
};

constexpr FieldSpec kTokenize[] = {
    {"prompt", kText, "A text; or what a chat is made of."},
    {"add_special_tokens", kBool, "A text gets BOS in front (default true)."},
    {"return_token_strs", kBool, "The tokens' texts as well."},
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
