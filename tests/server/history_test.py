#!/usr/bin/env python3
"""The prompts of histories in the forms of many clients: system messages in every place, reasoning, calls, turns without a question."""

import unittest

from support import SUM, WEATHER_TOOL, ServerTestCase, main

BOS, EOS, USER, THINK = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜><think>"
TURN = "<｜Assistant｜></think>"
NOTE = "<system-reminder>\n%s\n</system-reminder>"


def user(text):
    return {"role": "user", "content": text}


def said(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def system(text, role="system"):
    return {"role": role, "content": text}


class Histories(ServerTestCase):
    FLAGS = ["--default-thinking", "off"]

    def prompt(self, messages, **fields):
        body = {"messages": messages, **fields}
        tokens = self.text("/tokenize", body)["tokens"]
        self.assertEqual(self.text("/v1/chat/completions/render", body)["token_ids"], tokens)
        return self.text("/detokenize", {"tokens": tokens})["prompt"]

    def text(self, route, body):
        reply = self.server.post(route, body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def cost(self, messages, **fields):
        return self.text("/tokenize", {"messages": messages, **fields})["count"]

    def cost_of_messages(self, messages, **fields):
        counted = self.text("/v1/messages/count_tokens", {"model": "m", "messages": messages, **fields})["input_tokens"]
        usage = self.text("/v1/messages", {"model": "m", "max_tokens": 1, "messages": messages, **fields})["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], counted)
        return counted

    def cost_of_responses(self, items, **fields):
        return self.text("/v1/responses", {"input": items, "max_output_tokens": 1, **fields})["usage"]["input_tokens"]

    # ---- System messages

    CASES = [
        ([user("q"), system("B")], USER + "q\n\nB" + TURN),
        ([user("q"), system("B"), said("x"), user("z")], USER + "q\n\nB" + TURN + "x" + EOS + USER + "z" + TURN),
        ([user("q"), said("x"), system("B")], USER + "q" + TURN + "x" + EOS + USER + "B" + TURN),
        ([system("A"), system("B"), user("q")], "A\n\nB" + USER + "q" + TURN),
        ([system("A"), system(""), user("q")], "A" + USER + "q" + TURN),
        ([system("A")], "A" + TURN),
        ([said("x"), user("q")], TURN + "x" + EOS + USER + "q" + TURN),
        ([user("q"), said("x"), said("y"), user("z")], USER + "q" + TURN + "x" + EOS + TURN + "y" + EOS + USER + "z" + TURN),
        ([user("q"), system("")], USER + "q" + TURN),
    ]

    def test_every_turn_has_its_header(self):
        for messages, prompt in self.CASES:
            with self.subTest(prompt=prompt):
                self.assertEqual(self.prompt(messages), BOS + prompt)
                thinking = self.prompt(messages, thinking={"type": "enabled"})
                self.assertEqual(thinking, BOS + prompt[:-len(TURN)] + THINK)
                developer = [system(m["content"], "developer") if m["role"] == "system" else m for m in messages]
                self.assertEqual(self.prompt(developer), BOS + prompt)

    def test_the_same_in_messages_and_responses(self):
        for messages, _ in self.CASES:
            with self.subTest(messages=messages):
                later = [i > 0 and m["role"] == "system" and bool(m["content"]) and
                         any(n["role"] != "system" for n in messages[:i]) for i, m in enumerate(messages)]
                tagged = [user(NOTE % m["content"]) if late else m for late, m in zip(later, messages)]
                self.assertEqual(self.cost_of_messages(messages), self.cost(tagged))
                self.assertEqual(self.cost_of_responses(messages, reasoning={"effort": "none"}), self.cost(messages))

    def test_instructions_are_the_first_system_text(self):
        rest = [system("B", "developer"), user("q")]
        whole = self.cost([system("A"), *rest])
        self.assertEqual(self.cost_of_responses(rest, instructions="A", reasoning={"effort": "none"}), whole)
        self.assertEqual(self.cost_of_messages([system("B"), user("q")], system="A"), whole)

    def test_a_system_message_after_the_result_of_a_tool(self):
        call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        messages = [user("q"), said("", tool_calls=[call]), {"role": "tool", "tool_call_id": "a", "content": "noon"}, system("B")]
        self.assertTrue(self.prompt(messages).endswith(USER + "<tool_result>noon</tool_result>\n\nB" + TURN))

    def test_a_reminder_that_changes_leaves_earlier_turns_to_the_cache(self):
        start = [system("A. " * 100), user("Go on. " * 100), system("It is noon.")]
        known = self.chat(start, max_tokens=1)["usage"]["prompt_tokens"]
        usage = self.chat([*start, said("Well."), user("And?"), system("It is one.")], max_tokens=1)["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], known - 1)

    # ---- A reply at the end

    def test_a_reply_at_the_end_is_continued(self):
        def content(messages, **fields):
            return self.chat(messages, max_tokens=20, **fields)["choices"][0]["message"]["content"]

        begun = [*SUM, said("27 + 48 = ")]
        self.assertEqual(content(begun), "75.")
        self.assertTrue(self.prompt(begun).endswith(TURN + "27 + 48 = "))
        self.assertTrue(self.prompt(begun, thinking={"type": "enabled"}).endswith(THINK + "</think>27 + 48 = "))
        self.assertTrue(self.prompt(begun, continue_final_message=False).endswith("27 + 48 = " + EOS + TURN))
        # A reply that has a form of its own is another turn.
        form = {"response_format": {"type": "json_object"}}
        self.assertTrue(self.prompt(begun, **form).endswith("27 + 48 = " + EOS + TURN))
        self.assertTrue(content(begun, **form).startswith("{"))
        self.refused(self.server.post("/v1/chat/completions", {"messages": begun, **form, "continue_final_message": True}), 400,
                     "whole reply")
        call = self.chat(begun, tools=[WEATHER_TOOL], tool_choice="required", max_tokens=90)["choices"][0]["message"]
        self.assertEqual(call["tool_calls"][0]["function"]["name"], "get_weather")
        self.assertFalse(call["content"])
        reply = self.text("/v1/responses", {"input": begun, "max_output_tokens": 30, "text": {"format": {"type": "json_object"}},
                                            "reasoning": {"effort": "none"}})
        self.assertTrue(reply["output"][0]["content"][0]["text"].startswith("{"))
        # The text of a reply does not begin the reasoning.
        reply = self.chat([*SUM, said("Write <think>")], max_tokens=5, ignore_eos=True)["choices"][0]["message"]
        self.assertFalse(reply.get("reasoning_content"))
        self.assertTrue(reply["content"])

    def test_an_empty_reply_at_the_end_is_left_out(self):
        for empty in ["", None, [], "\n ", [{"type": "text", "text": ""}]]:
            self.assertEqual(self.prompt([*SUM, said(empty)], thinking={"type": "enabled"}),
                             self.prompt(SUM, thinking={"type": "enabled"}))
        self.assertEqual(self.cost_of_messages([*SUM, said("")]), self.cost(SUM))
        self.assertEqual(self.cost_of_responses([*SUM, said("")], reasoning={"effort": "none"}), self.cost(SUM))
        self.refused(self.server.post("/v1/chat/completions", {"messages": [said("")]}), 400, "messages is empty")

    def test_calls_at_the_end_need_results(self):
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        self.refused(self.server.post("/v1/chat/completions", {"messages": [*SUM, said(None, tool_calls=[call])]}), 400,
                     "results are missing")
        # Anthropic's form continues after them.
        self.cost_of_messages([*SUM, said([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])])

    # ---- Replies in the history

    def test_reasoning_is_kept_where_tools_are_offered(self):
        call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": "a", "content": "noon"}
        fields = {"thinking": {"type": "enabled"}, "tools": [WEATHER_TOOL]}
        expected = self.prompt([user("hi"), said("Soon.", reasoning_content="I check.", tool_calls=[call]), result], **fields)
        self.assertIn(THINK + "I check.</think>Soon.\n\n<", expected)
        for message in [
            said("Soon.", reasoning="I check."),
            said("Soon.", reasoning_details=[{"type": "reasoning.text", "text": "I check."}]),
            said([{"type": "thinking", "thinking": "I check.", "signature": "s"}, {"type": "text", "text": "Soon."}]),
            said("<think>I check.</think>Soon."),
            said("<think>\nI check.\n</think>\n\nSoon.", reasoning_content="I check."),
            said([{"type": "text", "text": "<think>I check.</think>"}, {"type": "text", "text": "Soon."}]),
        ]:
            with self.subTest(message=message):
                self.assertEqual(self.prompt([user("hi"), {**message, "tool_calls": [call]}, result], **fields), expected)
        # The other routes read tags too.
        cost = self.cost([user("hi"), said("Soon.", reasoning_content="I check."), user("q")], **fields)
        tool = {"name": "get_weather", **{k: v for k, v in WEATHER_TOOL["function"].items() if k == "description"},
                "input_schema": WEATHER_TOOL["function"]["parameters"]}
        for content in ["<think>I check.</think>Soon.", [{"type": "text", "text": "<think>I check.</think>Soon."}]]:
            self.assertEqual(self.cost_of_messages([user("hi"), said(content), user("q")], tools=[tool],
                                                   thinking={"type": "enabled"}), cost)
        tool = {"type": "function", **WEATHER_TOOL["function"]}
        for content in ["<think>I check.</think>Soon.", [{"type": "thinking", "thinking": "I check."},
                                                         {"type": "output_text", "text": "Soon."}]]:
            self.assertEqual(self.cost_of_responses([user("hi"), said(content), user("q")], tools=[tool],
                                                    reasoning={"effort": "low"}), cost)

    def test_drop_thinking_false_keeps_the_reasoning_of_earlier_turns(self):
        messages = [user("hi"), said("Soon.", reasoning_content="I check."), user("q")]
        thinking = {"type": "enabled"}
        dropped = self.prompt(messages, thinking=thinking)
        self.assertNotIn("I check.", dropped)
        for fields in [{"drop_thinking": False}, {"chat_template_kwargs": {"drop_thinking": False}}]:
            self.assertIn(THINK + "I check.</think>Soon.", self.prompt(messages, thinking=thinking, **fields))
        self.assertEqual(self.prompt(messages, thinking=thinking, drop_thinking=True), dropped)

    def test_arguments_of_calls_in_any_form(self):
        def calls(arguments):
            return self.prompt([user("hi"), said(None, tool_calls=[{"id": "a", "function": {"name": "f", "arguments": arguments}}]),
                                {"role": "tool", "tool_call_id": "a", "content": "noon"}])

        self.assertEqual(calls({"x": [1]}), calls('{"x": [1]}'))
        self.assertEqual(calls([1, 2]), calls("[1, 2]"))
        self.assertIn("[1, 2]", calls([1, 2]))
        for given, same in [('{"x": 1}', {"x": 1}), ("", {}), (None, {})]:
            blocks = [[{"type": "tool_use", "id": "a", "name": "f", "input": form}] for form in (given, same)]
            result = user([{"type": "tool_result", "tool_use_id": "a", "content": "noon"}])
            self.assertEqual(*[self.cost_of_messages([user("hi"), said(block), result]) for block in blocks])
        for given in ["not JSON", [1, 2], 5]:
            block = {"type": "tool_use", "id": "a", "name": "f", "input": given}
            self.cost_of_messages([user("hi"), said([block]), user([{"type": "tool_result", "tool_use_id": "a", "content": "x"}])])

    # ---- Tools that the service runs

    def test_the_choice_of_a_hosted_tool_is_ignored(self):
        ask = {"model": "m", "max_tokens": 4, "messages": [user("Search for x.")]}
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        own = {"name": "get_weather", "input_schema": {"type": "object"}}
        for tools, choice in [([search], {"type": "tool", "name": "web_search"}), ([search], {"type": "any"}),
                              ([search, own], {"type": "tool", "name": "web_search"})]:
            self.assertNotEqual(self.text("/v1/messages", {**ask, "tools": tools, "tool_choice": choice})["stop_reason"], "tool_use")
        # A function of the client is still required.
        named = {**ask, "max_tokens": 60, "tools": [search, own], "tool_choice": {"type": "tool", "name": "get_weather"}}
        self.assertEqual(self.text("/v1/messages", named)["content"][0]["type"], "tool_use")
        for tools, choice in [([search], {"type": "tool", "name": "find"}), ([], {"type": "any"})]:
            reply = self.server.post("/v1/messages", {**ask, "tools": tools, "tool_choice": choice})
            self.assertIn("tool_choice", self.refused_message(reply))

    def test_the_same_of_responses(self):
        ask = {"input": "hi", "max_output_tokens": 4}
        for tools, choice in [([{"type": "web_search"}], {"type": "web_search"}), ([{"type": "web_search"}], "required"),
                              ([{"type": "web_search_preview"}], {"type": "web_search"}),
                              ([{"type": "mcp", "server_label": "s", "server_url": "u"}], {"type": "mcp", "server_label": "s"})]:
            self.text("/v1/responses", {**ask, "tools": tools, "tool_choice": choice})
        for tools, choice in [([], {"type": "web_search"}), ([], "required"), ([{"type": "web_search"}], {"type": "file_search"}),
                              ([{"type": "web_search"}], {"type": "function", "name": "f"})]:
            reply = self.server.post("/v1/responses", {**ask, "tools": tools, "tool_choice": choice})
            self.assertIn("tool_choice", self.refused_message(reply))

    def refused_message(self, reply):
        self.assertEqual(reply.status, 400, reply.body)
        return reply.json["error"]["message"]


if __name__ == "__main__":
    main()
