#!/usr/bin/env python3
"""/v1/messages and /v1/messages/count_tokens."""

import json

from support import WEATHER, ServerTestCase, main

TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
SUM = [{"role": "user", "content": "What is 27 + 48?"}]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"), "tool_use": ("input_json_delta", "partial_json")}


class Messages(ServerTestCase):
    def send(self, messages, **fields):
        body = {"model": "claude", "max_tokens": 300, "temperature": 0, "messages": messages, **fields}
        reply = self.server.post("/v1/messages", body, **{"anthropic-version": "2023-06-01", "anthropic-beta": "new"})
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.headers["request-id"], reply.headers["x-request-id"])
        return reply.events() if fields.get("stream") else reply.json

    def accumulate(self, events):
        """Accumulates as the SDK does, strictly: every delta belongs to an open block of its type."""
        names = [event for event, _ in events]
        self.assertEqual(names[0], "message_start")
        self.assertEqual(names[-2:], ["message_delta", "message_stop"])
        self.assertTrue(all(event == data["type"] for event, data in events))
        message = dict(events[0][1]["message"], content=[])
        open_block, partial = None, ""
        for event, data in events[1:-2]:
            if event == "ping":
                continue
            if event == "content_block_start":
                self.assertIsNone(open_block)
                self.assertEqual(data["index"], len(message["content"]))
                open_block, partial = dict(data["content_block"]), ""
                message["content"].append(open_block)
            elif event == "content_block_delta":
                self.assertEqual(data["index"], len(message["content"]) - 1)
                delta = data["delta"]
                if delta["type"] == "signature_delta":
                    self.assertEqual(open_block["type"], "thinking")
                    open_block["signature"] = delta["signature"]
                    continue
                kind, field = DELTAS[open_block["type"]]
                self.assertEqual(delta["type"], kind)
                if kind == "input_json_delta":
                    partial += delta[field]
                else:
                    open_block[field] += delta[field]
            else:
                self.assertEqual(event, "content_block_stop")
                if partial:
                    open_block["input"] = json.loads(partial)
                open_block = None
        self.assertIsNone(open_block)
        message.update(events[-2][1]["delta"])
        message["usage"].update(events[-2][1]["usage"])
        return message

    def test_stream_and_whole_reply_agree(self):
        for messages, fields, types, reason in [
            (SUM, {}, ["text"], "end_turn"),
            (SUM, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking", "text"], "end_turn"),
            (SUM, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, ["thinking", "text"], "end_turn"),
            (PARIS, {"tools": [TOOL]}, ["tool_use"], "tool_use"),
            (PARIS, {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking", "tool_use"], "tool_use"),
            (SUM, {"max_tokens": 4}, ["text"], "max_tokens"),
            (SUM, {"stop_sequences": ["= 7"]}, ["text"], "stop_sequence"),
            (SUM, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, ["text"], "end_turn"),
        ]:
            with self.subTest(fields=fields):
                whole = self.send(messages, **fields)
                streamed = self.accumulate(self.send(messages, stream=True, **fields))
                self.assertEqual([block["type"] for block in whole["content"]], types)
                self.assertEqual(whole["stop_reason"], reason)
                self.assertEqual(whole["stop_sequence"], "= 7" if reason == "stop_sequence" else None)
                for message in (whole, streamed):
                    usage = message["usage"]
                    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
                    message.pop("id")
                    for block in message["content"]:
                        block.pop("id", None)
                        if block["type"] == "thinking":
                            self.assertTrue(block.pop("signature"))
                self.assertEqual(streamed, whole)

    def test_tools_round_trip_and_cache(self):
        first = self.send(PARIS, tools=[TOOL])
        (call,) = first["content"]
        self.assertEqual((call["name"], call["input"]["city"]), ("get_weather", "Paris"))
        self.assertTrue(call["id"].startswith("toolu_"))
        result = '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}'
        for content in [result, [{"type": "text", "text": result}]]:
            turn = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": content}]}
            second = self.send([*PARIS, {"role": "assistant", "content": first["content"]}, turn], tools=[TOOL])
            self.assertIn("18", second["content"][0]["text"])
        self.assertEqual(second["usage"]["cache_creation_input_tokens"], 0)

    def test_tool_choice(self):
        hello = [{"role": "user", "content": "Hello!"}]
        for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
            reply = self.send(hello, tools=[TOOL], tool_choice=choice)
            self.assertEqual({b["type"] for b in reply["content"]}, {"tool_use"})
        reply = self.send(PARIS, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=30)
        self.assertNotIn("tool_use", [b["type"] for b in reply["content"]])

    def test_prefill(self):
        reply = self.send([*SUM, {"role": "assistant", "content": "27 + 48 = "}])
        self.assertEqual(reply["content"][0]["text"], "75.")

    def test_count_tokens_is_what_a_message_costs(self):
        for messages, fields in [(SUM, {}), (PARIS, {"tools": [TOOL], "system": "Be brief."}),
                                 (SUM, {"thinking": {"type": "enabled", "budget_tokens": 1024}})]:
            counted = self.server.post("/v1/messages/count_tokens", {"model": "m", "messages": messages, **fields}).json
            usage = self.send(messages, **{"max_tokens": 1, **fields})["usage"]
            self.assertEqual(counted, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})

    def test_a_tool_that_is_named_often_is_not_written_as_often(self):
        tool = dict(TOOL, name="found", description="d" * 60000, defer_loading=True)
        results = [{"type": "tool_reference", "tool_name": "found"}] * 100
        ask = {"model": "claude", "tools": [TOOL, tool], "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": results}]}]}
        reply = self.server.post("/v1/messages/count_tokens", ask)
        self.assertEqual(reply.status, 400, reply.body)
        self.assertIn("4194304 bytes together", reply.json["error"]["message"])
        del results[10:]
        self.assertEqual(self.server.post("/v1/messages/count_tokens", ask).status, 200)

    def test_the_billing_line_does_not_reach_the_model(self):
        def count(system):
            return self.server.post("/v1/messages/count_tokens", {"messages": SUM, "system": system}).json["input_tokens"]
        line = "x-anthropic-billing-header: cc_version=2; cch=%s;"
        plain = [{"type": "text", "text": "Be brief."}]
        self.assertEqual(count([{"type": "text", "text": line % "abc"}, *plain]), count(plain))
        self.assertEqual(count((line % "abcdefg") + "\nBe brief."), count("Be brief."))

    def test_what_claude_code_sends(self):
        self.send([{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
                   {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                                     {"type": "redacted_thinking", "data": "x"},
                                                     {"type": "text", "text": "Hello."}]},
                   {"role": "user", "content": "again"}],
                  system=[{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
                  metadata={"user_id": "u"}, max_tokens=2, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
                  thinking={"type": "disabled"}, output_config={"effort": "high"}, context_management={"edits": []})

    def test_a_top_p_of_0_is_greedy(self):
        hot = {"temperature": 2, "seed": 1, "max_tokens": 12}
        ask = [{"role": "user", "content": "Tell me of the king."}]
        greedy = self.send(ask, max_tokens=12)["content"]
        self.assertNotEqual(self.send(ask, **hot)["content"], greedy)
        for fields in [{}, {"top_k": 50}]:
            self.assertEqual(self.send(ask, top_p=0, **hot, **fields)["content"], greedy)

    def test_errors(self):
        for body, status, kind, words in [
            ({"messages": SUM}, 400, "invalid_request_error", "max_tokens"),
            ({"max_tokens": 5}, 400, "invalid_request_error", "messages"),
            ({"max_tokens": 5, "messages": []}, 400, "invalid_request_error", "messages"),
            ({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
            ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error",
             "messages[0].content"),
            ({"max_tokens": 5, "messages": SUM, "thinking": {"type": "deep"}}, 400, "invalid_request_error", "thinking"),
            ({"max_tokens": 5, "messages": SUM, "tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
            ({"max_tokens": 5, "messages": SUM, "output_format": {"type": "json_schema"}}, 400, "invalid_request_error", "schema"),
        ]:
            with self.subTest(body=body):
                reply = self.server.post("/v1/messages", body)
                self.assertEqual(reply.status, status)
                error = reply.json
                self.assertEqual((error["type"], error["error"]["type"]), ("error", kind))
                self.assertIn(words, error["error"]["message"])
                self.assertEqual(error["request_id"], reply.headers["request-id"])
        self.assertEqual(self.server.post("/v1/messages", b"x" * (33 << 20)).status, 413)


if __name__ == "__main__":
    main()
