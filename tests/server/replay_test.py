#!/usr/bin/env python3
"""A session of a coding agent, 30 turns with tools, images and a compaction: every request is answered, nothing that was read before
is read again, and at least 95 % of all prompt tokens come from the prefix cache.

Neither client runs here, and nothing was recorded of one: the bodies imitate what their public sources say.

- Claude Code 2.1 (bodies published by proxies and their tests): three blocks of system text, of which the first changes with each
  request; reminders beside the user's text and beside tool results; results as strings or, with pictures, as lists; messages of the
  system amid the conversation; thinking sent back. It asks for a summary with the same instructions and tools, and goes on from
  that: a first message that holds it.
- Codex (openai/codex, codex-rs/core): instructions, the project's AGENTS.md and the environment as first messages of a user; calls of
  three kinds; reasoning sent back. It asks for a summary without tools (compact.rs), so that prompt has another beginning and is
  counted apart; then all that the user said follows, and the summary.

What the assistant says and calls is fixed, too, so all of it is read (a live session has it from the model itself, and reads the
results only). The instructions are 18 KB of this project's pages: Codex's are 22 KB for a model that it does not know (prompt.md),
Claude Code's with its tools more. What must be read is the first prompt once, then each turn: with a first prompt of P tokens and
turns of T, at least P + 30 T of 30 P + 235 T. So 95 % take P >= 36 T, whatever the cache does: a loop whose first prompt has 4,000
tokens and whose turns have 165 ends at 94.5 %, with one token a turn read twice (the last one of a prompt).
"""

import json

from support import ROOT, ServerTestCase, main

TURNS, COMPACTED = 30, 20
PROJECT = "".join((ROOT / "docs" / name).read_text() for name in ["architecture.md", "glossary.md"])[:18000]
FILES = (ROOT / "docs" / "model.md").read_text()
SIZES = [40, 120, 600, 60, 300, 180]  # bytes of a result: a listing, a page of a file, "done"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOLS = [("Read", "Reads a file.", {"file_path": "string", "offset": "integer", "limit": "integer"}),
         ("Bash", "Runs a command.", {"command": "string", "timeout": "integer", "description": "string"}),
         ("Edit", "Replaces text in a file.", {"file_path": "string", "old_string": "string", "new_string": "string"}),
         ("Glob", "Finds files by a pattern.", {"pattern": "string", "path": "string"}),
         ("Grep", "Finds lines by a regular expression.", {"pattern": "string", "glob": "string", "output_mode": "string"}),
         ("TodoWrite", "Keeps a list of what is to be done.", {"todos": "string"})]
TASK = "Find out why the compressor emits a row too early, and mend it. Run the tests that show it."
GUIDE = "Small steps. Run the tests of what you touched. Say what you did not do."
SUMMARIZE = "The conversation is near its limit. Write down what was done and what is left, for whoever goes on."
SUMMARY = "The compressor's window begins at the wrong position; compress.cc was read, a test that fails was written."


def schema(fields):
    return {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
            "properties": {name: {"type": kind} for name, kind in fields.items()}, "required": [next(iter(fields))]}


def step(i):
    """What happens in turn i: what is said, the call, its result, whether that has a picture, whether it failed."""
    name, _, fields = TOOLS[i % len(TOOLS)]
    call = {next(iter(fields)): "src/ops/compress/part_%d.cc" % i}
    begin = 150 * i % (len(FILES) - 600)
    text = "I look at part %d next." % i if i % 3 else ""
    return text, name, call, "%d: " % i + FILES[begin:begin + SIZES[i % len(SIZES)]], i % 9 == 5, i % 11 == 7


class Replay:
    """Counts what the turns read."""

    def __init__(self, test):
        self.test, self.cached, self.prompt, self.known = test, 0, 0, 0

    def add(self, turn, cached, prompt):
        """The prompt goes on from the one before, but for the first and the one behind the compaction."""
        if turn not in (0, COMPACTED):
            self.test.assertGreaterEqual(cached, self.known - 1, "turn %d reads again what is known" % turn)
        self.cached, self.prompt, self.known = self.cached + cached, self.prompt + prompt, prompt

    def check(self, summary):
        share = self.cached / self.prompt
        print("%.2f %% of %d prompt tokens were cached; of the request for a summary %d of %d" % (100 * share, self.prompt, *summary))
        self.test.assertGreater(self.prompt, 100000)
        self.test.assertGreaterEqual(share, 0.95)


class ClaudeCode(ServerTestCase):
    HEADERS = {"anthropic-version": "2023-06-01", "x-app": "cli", "user-agent": "claude-cli/2.1.278 (external, cli)",
               "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system-2026-04-07",
               "x-claude-code-session-id": "5e551011-0000-4000-8000-0000000008b3"}
    REMINDER = {"type": "text", "text": "<system-reminder>\n# claudeMd\n%s\n</system-reminder>" % GUIDE}

    def send(self, messages, number):
        """Cached and all tokens of the prompt."""
        marked = messages[:-1] + [{**messages[-1], "content": [*messages[-1]["content"][:-1],
                                                               {**messages[-1]["content"][-1], "cache_control": {"type": "ephemeral"}}]}]
        body = {
            "model": "nano", "max_tokens": 4, "stream": True, "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"},
            "metadata": {"user_id": json.dumps({"device_id": "a" * 64, "account_uuid": "", "session_id": "s"})},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.278.abc; cc_entrypoint=cli; cch=%05x;" % (number * 7919)},
                {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "You are an interactive agent.\n" + PROJECT, "cache_control": {"type": "ephemeral"}}],
            "tools": [*({"name": n, "description": d, "input_schema": schema(f)} for n, d, f in TOOLS),
                      {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}], "messages": marked}
        reply = self.server.request("POST", "/v1/messages?beta=true", body, self.HEADERS)
        self.assertEqual(reply.status, 200, reply.body[:300])
        events = [data for _, data in reply.events()]
        self.assertEqual(events[-1]["type"], "message_stop")
        (usage,) = [e["usage"] for e in events if e["type"] == "message_delta"]
        return usage["cache_read_input_tokens"], usage["cache_read_input_tokens"] + usage["input_tokens"]

    @classmethod
    def results(cls, i):
        """The user's message behind call i."""
        *_, result, image, failed = step(i)
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        content = [{"type": "tool_result", "tool_use_id": "toolu_%d" % i, "is_error": failed,
                    "content": [{"type": "text", "text": result}, picture] if image else result}]
        if i % 8 == 6:
            content.append({"type": "text", "text": "<system-reminder>\nThe user sent a new message: go on.\n</system-reminder>"})
        return {"role": "user", "content": content}

    def test_thirty_turns(self):
        replay = Replay(self)
        messages = [{"role": "user", "content": [self.REMINDER, {"type": "text", "text": TASK}]}]
        for i in range(TURNS):
            if i == COMPACTED:
                summary = self.send([*messages[:-1], {"role": "user", "content": [*messages[-1]["content"], {"type": "text", "text": SUMMARIZE}]}], 99)
                self.assertGreaterEqual(summary[0], replay.known - 1)
                said = "This session is being continued from a previous conversation that ran out of context.\n" + SUMMARY
                messages = [{"role": "user", "content": [self.REMINDER, {"type": "text", "text": said}]}]
            replay.add(i, *self.send(messages, i))
            text, name, call, *_ = step(i)
            words = [{"type": "thinking", "thinking": "The window may be wrong.", "signature": "dsv4-x"}] if i % 4 == 0 else []
            words += [{"type": "text", "text": text}] if text else []
            messages.append({"role": "assistant", "content": [*words, {"type": "tool_use", "id": "toolu_%d" % i, "name": name, "input": call}]})
            messages.append(self.results(i))
            if i == 12:
                messages.append({"role": "system", "content": [{"type": "text", "text": "Plan mode is off."}]})
        replay.check(summary)


class Codex(ServerTestCase):
    @staticmethod
    def message(text, role="user"):
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    def send(self, items, tools=True):
        """Cached and all tokens of the prompt."""
        function = {"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False,
                    "parameters": schema({"cmd": "string", "workdir": "string"})}
        patch = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
                 "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin end"}}
        body = {"model": "nano", "instructions": "You are Codex, a coding agent.\n" + PROJECT, "input": items, "stream": True,
                "store": False, "tools": [function, patch, {"type": "local_shell"}, {"type": "web_search"}] if tools else [],
                "tool_choice": "auto", "parallel_tool_calls": tools, "reasoning": {"effort": "low", "summary": "auto"},
                "include": ["reasoning.encrypted_content"], "prompt_cache_key": "session-1", "text": {"verbosity": "medium"},
                "max_output_tokens": 4}
        reply = self.server.post("/v1/responses", body, **{"User-Agent": "codex_cli_rs/0.60", "originator": "codex_cli_rs"})
        self.assertEqual(reply.status, 200, reply.body[:300])
        name, data = reply.events()[-1]
        self.assertIn(name, ("response.completed", "response.incomplete"))
        usage = data["response"]["usage"]
        return usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]

    @staticmethod
    def call(i):
        """The items of call i and of its output."""
        text, _, call, result, image, _ = step(i)
        kind = ["function_call", "local_shell_call", "custom_tool_call"][i % 3]
        item = {"function_call": {"name": "exec_command", "arguments": json.dumps(call)},
                "local_shell_call": {"status": "completed", "action": {"type": "exec", "command": ["bash", "-lc", "cat part"]}},
                "custom_tool_call": {"name": "apply_patch", "status": "completed", "input": "*** Begin Patch\n*** End Patch"}}[kind]
        output = [{"type": "input_text", "text": result}, {"type": "input_image", "image_url": "data:image/png;base64," + PIXEL}]
        said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}] if text else []
        return [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Looking."}], "encrypted_content": "gAAAA"}, *said,
                {"type": kind, "call_id": "call_%d" % i, **item},
                {"type": "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output",
                 "call_id": "call_%d" % i, "output": output if image else result}]

    def test_thirty_turns(self):
        replay = Replay(self)
        context = [self.message("<permissions instructions>\nApproval policy is never.\n</permissions instructions>", "developer"),
                   self.message("# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\n%s\n</INSTRUCTIONS>" % GUIDE),
                   self.message("<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>")]
        items = [*context, self.message(TASK)]
        for i in range(TURNS):
            if i == COMPACTED:
                summary = self.send([*items, self.message(SUMMARIZE)], tools=False)
                items = [*context, self.message(TASK), self.message("Another model started on this and wrote:\n" + SUMMARY)]
            replay.add(i, *self.send(items))
            items += self.call(i)
        replay.check(summary)


if __name__ == "__main__":
    main()
