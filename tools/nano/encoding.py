"""Chat encoding of the DeepSeek-V4 preview: from messages in OpenAI form to the exact prompt text.

It has the parts that the corpus and the evaluation need: system, user, assistant and tool messages, thinking on or off,
reasoning effort "max", tools, tool results, dropped reasoning. The C++ engine renders the same bytes.
"""

import json

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

TOOLS_SECTION = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{d}tool_calls>" block like the following:

<{d}tool_calls>
<{d}invoke name="$TOOL_NAME">
<{d}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{d}parameter>
...
</{d}invoke>
<{d}invoke name="$TOOL_NAME2">
...
</{d}invoke>
</{d}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""

MAX_EFFORT = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root "
    "cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)


def json_text(value):
    return json.dumps(value, ensure_ascii=False)


def tools_text(tools):
    schemas = "\n".join(json_text(tool["function"]) for tool in tools)
    return TOOLS_SECTION.replace("{d}", DSML).replace("{schemas}", schemas)


def tool_calls_text(calls):
    """Returns the DSML block of a list of OpenAI tool calls (arguments as JSON text)."""
    out = [f"<{DSML}tool_calls>"]
    for call in calls:
        function = call["function"]
        params = []
        for key, value in json.loads(function["arguments"]).items():
            is_string = isinstance(value, str)
            body = value if is_string else json_text(value)
            flag = "true" if is_string else "false"
            params.append(f'<{DSML}parameter name="{key}" string="{flag}">{body}</{DSML}parameter>')
        out.append(f'<{DSML}invoke name="{function["name"]}">\n' + "\n".join(params) + f"\n</{DSML}invoke>")
    return "\n".join(out) + f"\n</{DSML}tool_calls>"


def _merge(messages):
    """Joins consecutive user and tool messages into user messages made of blocks."""
    merged = []
    for message in messages:
        role = message["role"]
        if role not in ("user", "tool"):
            merged.append(dict(message))
            continue
        block = {"tool": role == "tool", "id": message.get("tool_call_id"), "text": message["content"]}
        if merged and merged[-1]["role"] == "user":
            merged[-1]["blocks"].append(block)
        else:
            merged.append({"role": "user", "blocks": [block]})
    return merged


def _order_results(messages):
    """Sorts tool results into the order of the calls that they answer."""
    order = {}
    for message in messages:
        if message["role"] == "assistant" and message.get("tool_calls"):
            order = {call.get("id"): i for i, call in enumerate(message["tool_calls"])}
        if message["role"] == "user" and order:
            slots = [i for i, block in enumerate(message["blocks"]) if block["tool"]]
            results = sorted((message["blocks"][i] for i in slots), key=lambda b: order.get(b["id"], 0))
            for i, block in zip(slots, results):
                message["blocks"][i] = block


def encode(messages, tools=None, thinking=False, effort=None):
    """Returns the prompt text of a conversation. It ends with the assistant's header if a user message is last."""
    if effort not in (None, "high", "max"):
        raise ValueError(f"unknown reasoning effort: {effort}")
    messages = [dict(m) for m in messages]
    if tools:
        if not messages or messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = tools
    drop = not any(m.get("tools") for m in messages)
    merged = _merge(messages)
    _order_results(merged)
    last_user = max((i for i, m in enumerate(merged) if m["role"] == "user"), default=-1)

    out = [BOS]
    if thinking and effort == "max":
        out.append(MAX_EFFORT)
    for i, message in enumerate(merged):
        role = message["role"]
        if role == "system":
            out.append(message.get("content") or "")
            if message.get("tools"):
                out.append("\n\n" + tools_text(message["tools"]))
        elif role == "user":
            parts = [
                f"<tool_result>{block['text']}</tool_result>" if block["tool"] else block["text"]
                for block in message["blocks"]
            ]
            out.append(USER + "\n\n".join(parts))
            following = merged[i + 1]["role"] if i + 1 < len(merged) else "assistant"
            if following == "assistant":
                keep = thinking and (not drop or i >= last_user)
                out.append(ASSISTANT + (THINK if keep else END_THINK))
        elif role == "assistant":
            if thinking and (not drop or i > last_user):
                out.append((message.get("reasoning_content") or "") + END_THINK)
            out.append(message.get("content") or "")
            if message.get("tool_calls"):
                out.append("\n\n" + tool_calls_text(message["tool_calls"]))
            out.append(EOS)
        else:
            raise ValueError(f"unsupported role: {role}")
    return "".join(out)
