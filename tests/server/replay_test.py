#!/usr/bin/env python3
"""A session of a coding agent, 30 turns with tools, images and compaction, in the bodies of Claude Code and of Codex: every
request is answered, and at least 95 % of all prompt tokens come from the prefix cache."""

import json
from pathlib import Path

from support import ServerTestCase, main

TURNS, COMPACTED = 30, 20
DOCS = Path(__file__).resolve().parents[2] / "docs"
PROJECT = "".join((DOCS / name).read_text() for name in ["architecture.md", "glossary.md"])  # what an agent is told of a project
FILES = (DOCS / "model.md").read_text()
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOLS = [("Read", "Reads a file.", {"file_path": "string", "offset": "integer", "limit": "integer"}),
         ("Bash", "Runs a command.", {"command": "string", "timeout": "integer", "description": "string"}),
         ("Edit", "Replaces text in a file.", {"file_path": "string", "old_string": "string", "new_string": "string"}),
         ("Glob", "Finds files by a pattern.", {"pattern": "string", "path": "string"}),
         ("Grep", "Finds lines by a regular expression.", {"pattern": "string", "glob": "string", "output_mode": "string"}),
         ("TodoWrite", "Keeps a list of what is to be done.", {"todos": "string"})]
TASK = "Find out why the compressor emits a row too early, and mend it. Run the tests that show it."
SUMMARY = ("This session is being continued from one that ran out of context. Summary: the compressor's window begins at the wrong "
           "position; compress.cc was read, a test was written that fails. Next: mend it, run the tests.")


def schema(fields):
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}, "required": [next(iter(fields))]}


def step(i):
    """What happens in turn i: what the model says, the call, its result; now and then a picture, or a failure."""
    name, _, fields = TOOLS[i % len(TOOLS)]
    call = {next(iter(fields)): "src/ops/compress/part_%d.cc" % i}
    text = "I look at part %d next." % i if i % 3 else ""
    begin = 150 * i % (len(FILES) - 150)
    return text, name, call, "%d: " % i + FILES[begin:begin + 150], i % 9 == 5, i % 11 == 7


class ClaudeCode(ServerTestCase):
    def body(self, messages, turn):
        return {
            "model": "nano", "max_tokens": 32000, "stream": True, "temperature": 1,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "user_0_account__session_1"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=%05x;" % (turn * 7919)},
                {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "You are an interactive agent.\n" + PROJECT, "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": n, "description": d, "input_schema": schema(f)} for n, d, f in TOOLS], "messages": messages}

    @staticmethod
    def turns():
        """The messages of each request."""
        reminder = {"type": "text", "text": "<system-reminder>\nThe user's claudeMd: small steps.\n</system-reminder>"}
        messages = [{"role": "user", "content": [reminder, {"type": "text", "text": TASK, "cache_control": {"type": "ephemeral"}}]}]
        for i in range(TURNS):
            if i == COMPACTED:
                messages = [{"role": "user", "content": [reminder, {"type": "text", "text": SUMMARY}]}]
            yield list(messages)
            text, name, call, result, image, failed = step(i)
            content = [{"type": "thinking", "thinking": "The window may be wrong.", "signature": "dsv4-x"}] if i % 4 == 0 else []
            content += [{"type": "text", "text": text}] if text else []
            messages.append({"role": "assistant", "content": content + [
                {"type": "tool_use", "id": "toolu_%d" % i, "name": name, "input": call}]})
            parts = [{"type": "text", "text": result}]
            if image:
                parts.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}})
            messages.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_%d" % i, "content": parts, "is_error": failed}]})

    def test_thirty_turns(self):
        cached = prompt = 0
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
                   "x-app": "cli", "user-agent": "claude-cli/2.1.0 (external, cli)"}
        for turn, messages in enumerate(self.turns()):
            body = self.body(messages, turn)
            body["max_tokens"] = 8
            reply = self.server.request("POST", "/v1/messages?beta=true", body, headers)
            self.assertEqual(reply.status, 200, reply.body[:300])
            events = reply.events()
            self.assertEqual(events[-1][0], "message_stop")
            usage = [data["usage"] for name, data in events if name == "message_delta"][-1]
            cached += usage["cache_read_input_tokens"]
            prompt += usage["cache_read_input_tokens"] + usage["input_tokens"]
        self.assertGreater(prompt, 100000)
        self.assertGreaterEqual(cached / prompt, 0.95)


class Codex(ServerTestCase):
    @staticmethod
    def turns():
        context = {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"}]}
        ask = lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        items = [context, ask(TASK)]
        for i in range(TURNS):
            if i == COMPACTED:
                items = [context, {"type": "compaction", "encrypted_content": "gAAAA"}, ask(SUMMARY)]
            yield list(items)
            text, _, call, result, image, _ = step(i)
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Looking."}], "encrypted_content": "gAAAA"})
            if text:
                items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
            kind = ["function_call", "local_shell_call", "custom_tool_call"][i % 3]
            items.append({"function_call": {"type": kind, "name": "exec_command", "arguments": json.dumps(call), "call_id": "call_%d" % i},
                          "local_shell_call": {"type": kind, "call_id": "call_%d" % i, "status": "completed",
                                               "action": {"type": "exec", "command": ["bash", "-lc", "cat part"]}},
                          "custom_tool_call": {"type": kind, "name": "apply_patch", "call_id": "call_%d" % i, "status": "completed",
                                               "input": "*** Begin Patch\n*** End Patch"}}[kind])
            output = [{"type": "input_text", "text": result}, {"type": "input_image", "image_url": "data:image/png;base64," + PIXEL}]
            items.append({"type": "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output",
                          "call_id": "call_%d" % i, "output": output if image else result})

    def test_thirty_turns(self):
        cached = prompt = 0
        function = {"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False,
                    "parameters": schema({"file_path": "string"})}
        patch = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark",
                                                                                               "definition": "start: begin end"}}
        for items in self.turns():
            body = {"model": "nano", "instructions": "You are Codex, a coding agent.\n" + PROJECT, "input": items, "stream": True,
                    "store": False, "tools": [function, patch, {"type": "local_shell"}, {"type": "web_search"}], "tool_choice": "auto",
                    "parallel_tool_calls": True, "reasoning": {"effort": "low", "summary": "auto"},
                    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "session-1", "text": {"verbosity": "medium"},
                    "max_output_tokens": 8, "temperature": 1}
            reply = self.server.post("/v1/responses", body, **{"User-Agent": "codex_cli_rs/0.60", "originator": "codex_cli_rs"})
            self.assertEqual(reply.status, 200, reply.body[:300])
            name, data = reply.events()[-1]
            self.assertIn(name, ("response.completed", "response.incomplete"))
            usage = data["response"]["usage"]
            cached += usage["input_tokens_details"]["cached_tokens"]
            prompt += usage["input_tokens"]
        self.assertGreater(prompt, 100000)
        self.assertGreaterEqual(cached / prompt, 0.95)


if __name__ == "__main__":
    main()
