"""The clients of client_table.py that PyPI does not have, or that are too large: their requests are replayed. Those of
Claude Code and Codex are recorded (recordings/). Those of the others have the fields, headers and forms of messages
that their published sources write; the texts are this project's."""

import http.client
import json
import lzma
from pathlib import Path
from urllib.parse import urlparse

from client_base import ANSWER, PARIS, QUESTION, TOOL, Client, get_weather

RECORDINGS = Path(__file__).resolve().parent / "recordings"
MARKS = ("<｜", "｜DSML｜", "</think>")  # parts of the template: none may be visible in a reply


def send(url, method, path, body=None, headers={}):
    """Returns the JSON of a reply, or the JSON of its events if it is a stream."""
    at = urlparse(url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=900)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        text = reply.read().decode()
    finally:
        connection.close()
    assert reply.status == 200, "status %d: %s" % (reply.status, text[:300])
    if not (body or {}).get("stream"):
        return json.loads(text)
    events = []
    for block in text.split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data and data != ["[DONE]"]:
            events.append(json.loads(data[0]))
    return events


def readable(text):
    assert text.strip(), "the reply is empty"
    assert not any(mark in text for mark in MARKS), "the reply has a part of the template: %r" % text[:200]
    return text


class Replayed(Client):
    VERSION = "–"  # forms of messages and fields hold for many versions

    def version(self):
        return self.VERSION


class ClaudeCode(Replayed):
    NAME, VERSION, NOTE = "Claude Code", "2.1.330", "recorded: opens with `[user, system]` and thinking; 12 tools"
    FILE, LIMIT = "claude_code.json.xz", "max_tokens"

    def recorded(self, number, **fields):
        request = json.loads(lzma.decompress((RECORDINGS / self.FILE).read_bytes()))[number]
        return send(self.url, "POST", request["path"], {**request["body"], self.LIMIT: 200, "temperature": 0, **fields}, request["headers"])

    def accept(self, blocks):
        """The request turns thinking on: a reply begins with it if the prompt ends in the assistant's header."""
        assert blocks and blocks[0]["type"] == "thinking" and blocks[0]["thinking"], "the reply does not begin with thinking: %r" % blocks
        readable("".join(block.get("text", "") + block.get("thinking", "") for block in blocks))

    def chat(self):
        return self.recorded(0, stream=False)["content"]

    def check_stream(self):
        events, blocks = self.recorded(0), []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"]})
            for key in ("thinking", "text"):
                if event["type"] == "content_block_delta" and event["delta"]["type"] == key + "_delta":
                    blocks[-1][key] += event["delta"][key]
        assert events[-1]["type"] == "message_stop", events[-1]
        self.accept(blocks)

    def check_tools(self):
        """A call is forced, and the second turn of the recording has a call and its result."""
        name = "DeferredToolPlaceholder"  # has no arguments: the bundled model cannot write other arguments reliably
        call = self.recorded(0, stream=False, tool_choice={"type": "tool", "name": name}, max_tokens=600)["content"][-1]
        assert (call["type"], call["name"]) == ("tool_use", name) and isinstance(call["input"], dict), call
        self.accept(self.recorded(1, stream=False)["content"])

    stream = tools = chat


class Codex(ClaudeCode):
    NAME, VERSION, NOTE = "Codex", "0.163.0", "recorded: Responses, two developer messages first; 9 tools"
    FILE, LIMIT = "codex.json.xz", "max_output_tokens"

    def accept(self, output):
        assert output and output[0]["type"] == "reasoning", "the reply does not begin with reasoning: %r" % output
        readable("".join(part["text"] for item in output for part in item.get("content") or []))

    def chat(self):
        return self.recorded(0, stream=False)["output"]

    def check_stream(self):
        events = self.recorded(0)
        assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]["type"]
        self.accept(events[-1]["response"]["output"])

    def check_tools(self):
        choice = {"type": "function", "name": "update_goal"}
        call = self.recorded(0, stream=False, tool_choice=choice, max_output_tokens=600)["output"][-1]
        assert (call["type"], call["name"]) == ("function_call", "update_goal"), call
        assert json.loads(call["arguments"])["status"] in ("complete", "blocked", "paused"), call
        self.accept(self.recorded(1, stream=False)["output"])


class ChatShape(Replayed):
    """Requests to /v1/chat/completions. `SYSTEM` is the system text; None: none is sent."""

    SYSTEM, FIELDS, HEADERS = None, {}, {}
    NOTE = "replayed"

    def user(self, text):
        return {"role": "user", "content": text}

    def called(self, message):
        """The message of the assistant as the client sends it back."""
        return {"role": "assistant", "content": message.get("content") or "", "tool_calls": message["tool_calls"]}

    def begin(self, text):
        system = [] if self.SYSTEM is None else [{"role": "system", "content": self.SYSTEM}]
        return [*system, self.user(text)]

    def send(self, messages, **fields):
        body = {"model": "nano", "temperature": 0, "messages": messages, **self.FIELDS, **fields}
        return send(self.url, "POST", "/v1/chat/completions", body, {"Authorization": "Bearer none", **self.HEADERS})

    def accept(self, text):
        readable(text)
        assert self.SYSTEM is not None or text == ANSWER, "the answer is %r" % text

    def chat(self):
        return self.send(self.begin(QUESTION), stream=False)["choices"][0]["message"]["content"]

    def deltas(self, messages, **fields):
        chunks = self.send(messages, stream=True, stream_options={"include_usage": True}, **fields)
        assert chunks[-1]["usage"]["completion_tokens"] > 1, chunks[-1]
        return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]

    def stream(self):
        return [delta.get("content") or "" for delta in self.deltas(self.begin(QUESTION))]

    def message(self, messages, **fields):
        """Returns a streamed message with its calls."""
        message = {"content": "", "reasoning_content": "", "tool_calls": []}
        for delta in self.deltas(messages, **fields):
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for part in delta.get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    function = {"name": "", "arguments": ""}
                    message["tool_calls"].append({"id": part["id"], "type": "function", "function": function})
                for key in ("name", "arguments"):
                    message["tool_calls"][part["index"]]["function"][key] += part["function"].get(key) or ""
        return message

    TOOL_FIELDS = {"tool_choice": "auto"}

    def tools(self):
        fields, messages = {"tools": [TOOL], **self.TOOL_FIELDS}, self.begin(PARIS)
        message = self.message(messages, **fields)
        assert message["tool_calls"], "no call: %r" % message
        messages.append(self.called(message))
        for call in message["tool_calls"]:
            result = get_weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return self.message(messages, **fields)["content"]


class OpenWebUi(ChatShape):
    """A chat, the request for its title, and the list of models."""

    NAME = "Open WebUI"
    NOTE = "replayed: models, chat, title, native function calls"
    HEADERS = {"User-Agent": "Python/3.11 aiohttp/3.14", "X-OpenWebUI-User-Name": "A", "X-OpenWebUI-User-Id": "1",
               "X-OpenWebUI-User-Email": "a@localhost", "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "2"}
    TOOL_FIELDS = {}

    def chat(self):
        models = send(self.url, "GET", "/v1/models", None, {"Authorization": "Bearer none", **self.HEADERS})
        assert [model["id"] for model in models["data"]] == ["nano"], models
        title = "### Task:\nWrite a title.\n### Output:\nJSON: { \"title\": \"...\" }\n### Chat History:\n" + QUESTION
        readable(self.send([self.user(title)], stream=False, max_completion_tokens=1000)["choices"][0]["message"]["content"])
        return super().chat()

    def called(self, message):
        calls = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        return {"role": "assistant", "content": "", "tool_calls": calls}


class OpenCode(ChatShape):
    NAME, NOTE = "opencode", "replayed: `@ai-sdk/openai-compatible`"
    SYSTEM, FIELDS = "Answer in one line.", {"max_tokens": 32000}
    HEADERS = {"User-Agent": "opencode/1.18.33", "x-session-affinity": "ses_1"}

    def called(self, message):
        return {"role": "assistant", "content": message["content"], "reasoning_content": message["reasoning_content"],
                "tool_calls": message["tool_calls"]}


class Cline(ChatShape):
    NAME, NOTE = "Cline", "replayed: parts of text, environment details after the task"
    SYSTEM, TOOL_FIELDS = "You answer questions.", {}
    HEADERS = {"User-Agent": "OpenAI/JS 4.96.0", "X-Stainless-Lang": "js", "X-Stainless-Runtime": "node"}

    def user(self, text):
        return {"role": "user", "content": [{"type": "text", "text": "<task>\n%s\n</task>" % text},
                                            {"type": "text", "text": "<environment_details>\n12:00\n</environment_details>"}]}


class RooCode(ChatShape):
    NAME, NOTE = "Roo Code", "replayed: `cache_control` on texts, one call at a time"
    FIELDS = {"max_completion_tokens": 8192}
    SYSTEM = [{"type": "text", "text": "You answer questions.", "cache_control": {"type": "ephemeral"}}]
    HEADERS = {"User-Agent": "RooCode/3.50.0", "HTTP-Referer": "https://github.com/RooVetGit/Roo-Cline", "X-Title": "Roo Code"}
    TOOL_FIELDS = {"tool_choice": "auto", "parallel_tool_calls": False}

    def user(self, text):
        return {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}


class KiloCode(RooCode):
    NAME, NOTE = "Kilo Code", "replayed: as Roo Code, with headers of its own"
    HEADERS = {"User-Agent": "Kilo-Code/4.100.0", "HTTP-Referer": "https://kilocode.ai", "X-Title": "Kilo Code",
               "X-KiloCode-Version": "4.100.0"}


REPLAYED = (ClaudeCode, Codex, OpenWebUi, OpenCode, Cline, RooCode, KiloCode)
