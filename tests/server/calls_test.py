#!/usr/bin/env python3
"""Calls that a model may not make, or writes wrongly: a call has all its arguments, or its text is the content. Whole and
streamed replies of all three APIs agree."""

import json
import tempfile
import unittest
from pathlib import Path

import scripted
from support import HAS_NANO, Server, ServerTestCase, main

D = "｜DSML｜"
RUN = {"name": "run", "description": "Runs a command.", "parameters": {
    "type": "object", "properties": {"cmd": {"type": "string"}, "timeout": {"type": "integer"}}, "required": ["cmd"]}}
LS = '<{D}parameter name="cmd" string="true">ls</{D}parameter>\n'


def block(body, name="run"):
    return '<{D}tool_calls>\n<{D}invoke name="%s">\n%s</{D}invoke>\n</{D}tool_calls>' % (name, body)


GOOD = block(LS + '<{D}parameter name="timeout" string="false">5</{D}parameter>\n')
ALL = {"cmd": "ls", "timeout": 5}
# Name: the text, and the arguments of the call; None: no call.
SCRIPTS = {
    "good": (GOOD, ALL),
    "before": ("I look.\n\n" + GOOD, ALL),
    "explains": ("Calls begin with <{D}tool_calls>, then <{D}invoke name=\"NAME\">. That is all.", None),
    "example": ("So:\n```\n" + GOOD + "\n```\nis a call.", None),
    "order": (block(LS.replace(' name="cmd" string="true"', ' string="true" name="cmd"')), {"cmd": "ls"}),
    "quotes": (GOOD.replace('"', "'"), ALL),
    "json": (block('{"cmd": "ls", "timeout": 5}\n'), ALL),
    "text_number": (GOOD.replace('string="false"', 'string="true"'), ALL),
    "wrapped": (block('<{D}parameter name="arguments" string="false">{"cmd": "ls", "timeout": 5}</{D}parameter>\n'), ALL),
    "wrapped_text": (block('<{D}parameter name="input" string="true">ls</{D}parameter>\n'), {"cmd": "ls"}),
    "wrapper": (GOOD.replace("tool_calls>\n<", "toolcalls>\n<", 1), ALL),
    "twice": (block(LS + LS), None),
    "closer": (block(LS.replace("ls", "a</{D}parameter>b")), None),
    "cut": (GOOD[:GOOD.index("ls") + 2], None),
    "no_name": (GOOD.replace(' name="run"', ""), None),
    "open_quote": (GOOD.replace('"run"', '"run'), None),
    "empty": ("<{D}tool_calls>\n</{D}tool_calls>", None),
    "plain": (block(LS.replace("{D}", "")), None),
    "ends": ("A reply ends with <｜end▁of▁sentence｜>, reasoning with </think>.", None),
}
SCRIPTS = {name: (text.replace("{D}", D), arguments) for name, (text, arguments) in SCRIPTS.items()}
TOOLS = {"/v1/chat/completions": [{"type": "function", "function": RUN}],
         "/v1/messages": [{"name": "run", "description": "Runs.", "input_schema": RUN["parameters"]}],
         "/v1/responses": [{"type": "function", **RUN}]}
NONE = {"/v1/chat/completions": "none", "/v1/messages": {"type": "none"}, "/v1/responses": "none"}


@unittest.skipUnless(HAS_NANO, "models/nano is missing")
class Calls(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        cls.server, cls.ids = cls.start(list(SCRIPTS))
        # Messages has no logit_bias: one server for each of these scripts.
        cls.servers = {"good": cls.server, "twice": cls.start(["twice"])[0]}

    @classmethod
    def start(cls, names):
        with tempfile.TemporaryDirectory() as folder:
            ids = scripted.make(Path(folder), [SCRIPTS[name][0] for name in names])
            server = Server("-m", folder)  # it has read its files when it listens
        cls.addClassCleanup(server.stop)
        return server, dict(zip(names, ids))

    def reply(self, path, name, stream=False, **fields):
        """(content, calls, end) of a reply with this script."""
        body = {"model": "m", "temperature": 0, "stream": stream, **fields}
        server = self.servers[name] if path == "/v1/messages" else self.server
        if path != "/v1/messages":
            body["logit_bias"] = {str(self.ids[name]): 100}
        if path == "/v1/responses":
            body.update(input="hi", reasoning={"effort": "none"}, max_output_tokens=9)
        else:
            body.update(messages=[{"role": "user", "content": "hi"}], max_tokens=9, thinking={"type": "disabled"})
        reply = server.post(path, body)
        self.assertEqual(reply.status, 200, reply.body)
        if not stream:
            return {"/v1/chat/completions": self.chat, "/v1/messages": self.message, "/v1/responses": self.response}[path](reply.json)
        return self.events(path, [data for _, data in reply.events() if data != "[DONE]"])

    def chat(self, json_):
        choice = json_["choices"][0]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls", [])]
        return choice["message"]["content"], calls, choice["finish_reason"]

    def message(self, json_):
        text = "".join(b.get("text", "") for b in json_["content"])
        calls = [(b["name"], json.dumps(b["input"])) for b in json_["content"] if b["type"] == "tool_use"]
        return text, calls, {"tool_use": "tool_calls", "end_turn": "stop"}[json_["stop_reason"]]

    def response(self, json_):
        text = "".join(p["text"] for item in json_["output"] if item["type"] == "message" for p in item["content"])
        calls = [(item["name"], item["arguments"]) for item in json_["output"] if item["type"] == "function_call"]
        self.assertEqual(json_["status"], "completed")
        return text, calls, "tool_calls" if calls else "stop"

    def events(self, path, events):
        text, calls, end = "", [], None
        for e in events:
            if path == "/v1/responses" and e["type"] == "response.completed":
                return self.response(e["response"])
            if path == "/v1/messages":
                if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use":
                    calls.append([e["content_block"]["name"], ""])
                text += e.get("delta", {}).get("text", "")
                if "partial_json" in e.get("delta", {}):
                    calls[-1][1] += e["delta"]["partial_json"]
                end = {"tool_use": "tool_calls", "end_turn": "stop"}.get(e.get("delta", {}).get("stop_reason"), end)
            for choice in e.get("choices", []):
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    if call["index"] == len(calls):
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"].get("arguments", "")
                end = choice["finish_reason"] or end
        return text, [tuple(c) for c in calls], end

    def scripts(self, path):
        return [(n, *s) for n, s in SCRIPTS.items() if path != "/v1/messages" or n in self.servers]

    def test_a_call_has_all_its_arguments_or_is_text(self):
        for path, tools in TOOLS.items():
            for name, text, arguments in self.scripts(path):
                for stream in (False, True):
                    with self.subTest(path=path, script=name, stream=stream):
                        content, calls, end = self.reply(path, name, stream, tools=tools)
                        if arguments is None:
                            self.assertEqual((content, calls, end), (text, [], "stop"))
                        else:
                            self.assertEqual(content, text.split("\n\n")[0] if name == "before" else "")
                            self.assertEqual([(n, json.loads(a)) for n, a in calls], [("run", arguments)])
                            self.assertEqual(end, "tool_calls")

    def test_a_call_that_is_not_allowed_is_text(self):
        for path, tools in TOOLS.items():
            for fields in ({}, {"tools": tools, "tool_choice": NONE[path]}):
                for name, text, _ in self.scripts(path):
                    with self.subTest(path=path, script=name, fields=fields):
                        self.assertEqual(self.reply(path, name, name == "good", **fields), (text, [], "stop"))

    def test_a_call_inside_the_reasoning(self):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0,
                "tools": TOOLS["/v1/chat/completions"]}
        for name in ("good", "twice"):
            reply = self.server.post("/v1/chat/completions", {**body, "logit_bias": {str(self.ids[name]): 100}}).json
            message = reply["choices"][0]["message"]
            if name == "good":
                self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), ALL)
            else:
                self.assertNotIn("tool_calls", message)
                self.assertEqual(message["reasoning_content"], SCRIPTS[name][0])


if __name__ == "__main__":
    main()
