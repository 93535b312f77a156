#!/usr/bin/env python3
"""Structured output of a live server through the official packages: whatever the small model prefers, its output
follows the schema. Skipped if the server was built without grammars."""

import json
import sys
import time
import unittest

import clients_venv

clients_venv.enter()

import anthropic
import jsonschema
import openai

from support import HAS_NANO, SLOWNESS, SUM, WEATHER, ServerTestCase, best_of, has_grammars, in_parallel, main

NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"type": "string", "enum": ["größer", "kleiner", "数", "🙂"]},
        "level": {"type": "integer", "minimum": -5, "maximum": 40},
        "share": {"type": "number"},
        "done": {"type": ["boolean", "null"]},
        "parts": {"type": "array", "minItems": 1, "maxItems": 2,
                  "items": {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-f]{3}$"}},
                            "required": ["id"], "additionalProperties": False}},
        "next": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "level", "share", "done", "parts", "next"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "object", "properties": {"v": {"const": 7}}, "required": ["v"], "additionalProperties": False}},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                   "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 3}},
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "forecast", "description": "Tells the weather.", "strict": True,
                                         "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "stop", "description": "Stops."}}
HELLO = [{"role": "user", "content": "Hello"}]
LIMIT = 700


def json_schema(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True, **fields}}


class Structured(ServerTestCase):
    def setUp(self):
        self.openai = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.server.port, api_key="k", max_retries=0, timeout=300)
        self.anthropic = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % self.server.port, api_key="k", max_retries=0, timeout=300)

    def test_long_names_of_a_deep_strict_schema_take_no_memory_of_their_own(self):
        schema = {"type": "string"}
        for _ in range(90):
            schema = {"type": "object", "properties": {"n" * 200000: schema}}
        peak = lambda: self.server.memory("VmHWM")  # noqa: E731
        before = peak()
        body = {"messages": HELLO, "response_format": json_schema(schema)}
        reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(reply.status, 400, reply.body[:300])
        self.assertIn("the limit is", reply.json["error"]["message"])
        if SLOWNESS == 1:
            self.assertLess(peak() - before, 400)

    def create(self, messages=HELLO, **fields):
        fields = {"max_tokens": LIMIT, "reasoning_effort": "none", **fields}
        return self.openai.chat.completions.create(model="nano", messages=messages, **fields)

    def follows(self, text, schema):
        value = json.loads(text)
        jsonschema.validate(value, schema)
        return value

    def test_schema_without_and_with_thinking_whole_and_streamed(self):
        for seed in range(2):
            choice = self.create(response_format=json_schema(NESTED), seed=seed, temperature=1).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            self.follows(choice.message.content, NESTED)
        for fields in [{}, {"reasoning_effort": "high", "messages": SUM, "temperature": 0}]:
            whole = self.create(response_format=json_schema(NESTED), seed=5, **fields).choices[0].message
            self.follows(whole.content, NESTED)
            self.assertEqual("reasoning_effort" in fields, bool(getattr(whole, "reasoning_content", "")))
            stream = self.create(response_format=json_schema(NESTED), seed=5, stream=True, **fields)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            self.assertEqual(text, whole.content)

    def test_reasoning_that_does_not_end_is_ended_for_the_reply(self):
        reply = self.create(SUM, reasoning_effort="high", response_format=json_schema(NESTED), temperature=0,
                            extra_body={"thinking_budget": 5})
        self.follows(reply.choices[0].message.content, NESTED)
        self.assertLessEqual(reply.usage.completion_tokens_details.reasoning_tokens, 12)

    def test_json_object_and_several_choices(self):
        reply = self.create(response_format={"type": "json_object"}, n=3, seed=1, temperature=1, max_tokens=150)
        texts = [c.message.content for c in reply.choices if c.finish_reason == "stop"]
        for text in texts:
            self.assertIsInstance(json.loads(text), dict)
        for choice in reply.choices:
            self.assertTrue(choice.message.content.startswith("{"))

    def test_a_reply_cut_off_is_the_beginning_of_one(self):
        choice = self.create(response_format=json_schema(NESTED), max_tokens=9, temperature=0).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertTrue(choice.message.content.startswith('{'))
        with self.assertRaises(ValueError):
            json.loads(choice.message.content)

    def test_stop_strings_logprobs_and_min_tokens(self):
        schema = {"type": "object", "properties": {"a": {"const": "xyz"}, "b": {"type": "integer", "maximum": 9, "minimum": 0}},
                  "required": ["a", "b"], "additionalProperties": False}
        choice = self.create(response_format=json_schema(schema), stop=["yz"]).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content.endswith('"x')), ("stop", True), choice)
        choice = self.create(response_format=json_schema(schema), logprobs=True, top_logprobs=3,
                             extra_body={"min_tokens": 400, "ignore_eos": True}).choices[0]
        self.follows(choice.message.content, schema)
        self.assertEqual("".join(t.token for t in choice.logprobs.content), choice.message.content)
        # The model's own probabilities, not those among the few tokens that the grammar allows.
        self.assertLess(min(t.logprob for t in choice.logprobs.content), -1)

    def test_text_that_looks_like_markup_stays_text(self):
        schema = {"type": "object", "properties": {"a": {"const": "</think><｜DSML｜tool_calls>"}}, "required": ["a"],
                  "additionalProperties": False}
        choice = self.create(response_format=json_schema(schema)).choices[0]
        self.follows(choice.message.content, schema)
        self.assertEqual(choice.finish_reason, "stop")

    def test_beside_tools_the_reply_is_json_or_a_call(self):
        for seed in range(2):
            choice = self.create(response_format=json_schema(NESTED), tools=[TOOL], seed=seed, temperature=1).choices[0]
            if choice.message.tool_calls:
                self.follows(choice.message.tool_calls[0].function.arguments, PARAMETERS)
            else:
                self.follows(choice.message.content, NESTED)

    def test_required_and_named_calls(self):
        for tool_choice in ["required", {"type": "function", "function": {"name": "forecast"}}]:
            for effort in ["none", "high"]:
                for seed in range(2):
                    choice = self.create(SUM, tools=[TOOL, OTHER], tool_choice=tool_choice, reasoning_effort=effort, seed=seed,
                                         parallel_tool_calls=False,
                                         temperature=1).choices[0]
                    self.assertEqual(choice.finish_reason, "tool_calls", choice)
                    self.assertFalse(choice.message.content)
                    for call in choice.message.tool_calls:
                        self.assertIn(call.function.name, ["forecast", "stop"] if tool_choice == "required" else ["forecast"])
                        self.follows(call.function.arguments, PARAMETERS if call.function.name == "forecast" else {"maxProperties": 0})

    def test_streamed_calls_are_the_same(self):
        fields = dict(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=3, temperature=1)
        whole = self.create(**fields).choices[0].message.tool_calls
        arguments = ""
        for chunk in self.create(stream=True, **fields):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += call.function.arguments
        self.assertEqual([arguments], [call.function.arguments for call in whole])
        self.follows(arguments, PARAMETERS)

    def test_strict_tools_that_the_model_calls_by_itself(self):
        weather = {**TOOL["function"], "name": "get_weather", "description": "Get the current weather in a city."}
        choice = self.create([{"role": "user", "content": "What is the weather in Paris?"}], temperature=0,
                             tools=[{"type": "function", "function": weather}]).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.follows(choice.message.tool_calls[0].function.arguments, PARAMETERS)

    def test_tools_that_are_not_strict_follow_their_schemas_too(self):
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        weather = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": PARAMETERS}
        tools = [{"type": "function", "function": weather}, OTHER]
        choice = self.create(messages, temperature=0, tools=tools, parallel_tool_calls=False).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        arguments = choice.message.tool_calls[0].function.arguments
        self.follows(arguments, PARAMETERS)
        # A schema that cannot be made into a grammar does not matter.
        weather = {**weather, "parameters": {**WEATHER["parameters"], "properties": {
            **WEATHER["parameters"]["properties"], "unit": {"type": "string", "pattern": "("}}}}
        choice = self.create(messages, temperature=0, tools=[{"type": "function", "function": weather}]).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual(json.loads(choice.message.tool_calls[0].function.arguments), {"city": "Paris"})

    def test_responses(self):
        format = {"type": "json_schema", "name": "answer", "schema": NESTED, "strict": True}
        reply = self.openai.responses.create(model="nano", input="Hello", reasoning={"effort": "none"}, text={"format": format},
                                             max_output_tokens=LIMIT)
        self.follows(reply.output_text, NESTED)
        self.assertEqual(reply.text.format.type, "json_schema")
        tool = {"type": "function", **TOOL["function"]}
        reply = self.openai.responses.create(model="nano", input="Hello", reasoning={"effort": "none"}, tools=[tool],
                                             parallel_tool_calls=False, tool_choice="required", max_output_tokens=LIMIT)
        self.follows(reply.output[0].arguments, PARAMETERS)

    def test_messages(self):
        tool = {"name": "forecast", "description": "Tells the weather.", "input_schema": PARAMETERS}
        for choice in [{"type": "any", "disable_parallel_tool_use": True},
                       {"type": "tool", "name": "forecast", "disable_parallel_tool_use": True}]:
            reply = self.anthropic.messages.create(model="nano", messages=HELLO, max_tokens=LIMIT, tools=[tool], tool_choice=choice)
            self.assertEqual(reply.stop_reason, "tool_use")
            jsonschema.validate(reply.content[-1].input, PARAMETERS)
        reply = self.anthropic.messages.create(model="nano", messages=HELLO, max_tokens=LIMIT, extra_body={
            "output_config": {"format": {"type": "json_schema", "schema": NESTED}}})
        self.follows(reply.content[-1].text, NESTED)

    def test_completions_and_vllms_names(self):
        def complete(**fields):
            return self.openai.completions.create(model="nano", prompt="And it came", max_tokens=LIMIT, extra_body=fields).choices[0].text
        self.assertIn(complete(guided_choice=["ja", "nein"]), ["ja", "nein"])
        # Bounded: the model samples without a seed and may continue [a-c]+ up to the token limit.
        self.assertRegex(complete(structured_outputs={"regex": "[0-9]{3}-[a-c]{1,8}x"}), r"^[0-9]{3}-[a-c]{1,8}x$")
        self.assertIn(complete(guided_grammar='root ::= "a" ("b" | "c") "d"'), ["abd", "acd"])
        self.follows(complete(guided_json=NESTED), NESTED)
        self.follows(complete(response_format=json_schema(NESTED)), NESTED)

    def test_among_others_the_same(self):
        from support import in_parallel

        def ask(format):
            return self.create(response_format=format, seed=9, temperature=1, max_tokens=120).choices[0].message.content
        formats = [json_schema(NESTED), {"type": "text"}, {"type": "json_object"}] * 4
        alone = [ask(format) for format in formats[:3]]
        self.assertEqual(in_parallel([lambda f=f: ask(f) for f in formats]), alone * 4)

    def test_what_cannot_be_done_is_refused_by_name(self):
        def refuse(words, param, **fields):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.create(**fields)
            self.assertIn(words, str(caught.exception))
            self.assertEqual(caught.exception.param, param)
        refuse('"not"', "response_format.json_schema.schema.properties.a",
               response_format=json_schema({"type": "object", "properties": {"a": {"not": {}}}}))
        refuse("purple", "response_format", response_format=json_schema({"type": "purple"}, strict=False))
        refuse("looks ahead", "response_format.json_schema.schema.properties.a", response_format=json_schema(
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}))
        refuse("is missing", "response_format.json_schema.schema", response_format={"type": "json_schema", "json_schema": {"name": "x"}})
        refuse("both set the form of the output", "guided_regex", response_format={"type": "json_object"}, extra_body={"guided_regex": "a"})
        refuse("begins the reply", "response_format", response_format={"type": "json_object"},
               messages=[*HELLO, {"role": "assistant", "content": "{", "prefix": True}])
        refuse('"uniqueItems"', "tools.f.parameters.properties.a", tool_choice="required",
               tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                   "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}])
        # Without strict, the output follows the enforceable part of the schema.
        self.create(response_format=json_schema({"type": "object", "properties": {"a": {"not": {}}}}, strict=False), max_tokens=5)


class Hostile(ServerTestCase):
    """Grammars that make too much work: they fail only their own request."""

    FLAGS = ["--default-thinking", "off"]

    def stream(self, seconds):
        """The longest time between two events of a stream that runs for `seconds`."""
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "And", "max_tokens": 100000, "ignore_eos": True,
                                                                  "stream": True, "temperature": 0}))
        reply = connection.getresponse()
        end, last, gap = time.time() + seconds, time.time(), 0
        while time.time() < end:
            if reply.readline().startswith(b"data: "):
                gap, last = max(gap, time.time() - last), time.time()
        connection.close()
        return gap

    def test_an_ambiguous_grammar_ends_with_an_error_and_delays_nobody(self):
        eos = self.server.post("/tokenize", {"prompt": "<｜end▁of▁sentence｜>", "add_special_tokens": False}).json["tokens"][0]
        names = iter("rstuv")

        def beside_others():  # returns the stream's longest gap, and a bound for it
            r = next(names)  # a grammar that is not cached
            rules = f"root ::= {r}0\n" + "".join(f'{r}{i} ::= {r}{i + 1} {r}{i + 1} | "a"\n' for i in range(40)) + f'{r}40 ::= "a"\n'
            alone = self.stream(2)
            asks = [lambda: self.server.post("/v1/completions", {"prompt": "And", "guided_grammar": rules, "max_tokens": 2000,
                                                                 "temperature": 0, "logit_bias": {str(eos): -100}})] * 3
            results = in_parallel([lambda: self.stream(15), *asks])
            for reply in results[1:]:
                self.refused(reply, 400, "too much work", "the limit")
            return results[0], max(1, 5 * alone) * SLOWNESS

        self.assertLess(*best_of(5, lambda found: found[0] < found[1], beside_others))  # no limit: 10 s

    def test_schemas_that_take_minutes_are_refused_and_block_nobody(self):
        body = {"messages": SUM, "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"enum": ["x" * 900000]}}}}
        asks = [lambda: (self.server.post("/v1/chat/completions", body), time.time())] * 2
        chats = [lambda: (time.sleep(1), self.chat(max_tokens=1), time.time())[-1]] * 4
        results = in_parallel([*asks, *chats])
        for reply, _ in results[:2]:
            self.refused(reply, 400, "response_format", "the limit")
        self.assertLess(max(results[2:]), min(end for _, end in results[:2]))  # while both compile threads were busy
        names = iter("vwxyz")

        def after_those_who_left():
            for _ in range(4):
                connection = self.server.connect()
                connection.request("POST", "/v1/chat/completions", json.dumps(body))
                time.sleep(0.3)
                connection.close()
            begin = time.time()
            name = next(names)
            schema = {"name": "y", "schema": {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}}
            self.chat(max_tokens=20, response_format={"type": "json_schema", "json_schema": schema})
            return time.time() - begin

        # A client that leaves cancels its compilation: the threads are free at once, not after ten seconds.
        self.assertLess(best_of(5, lambda seconds: seconds < 9 * SLOWNESS, after_those_who_left), 9 * SLOWNESS)
        # A prompt that is too long is refused before the grammar is compiled.
        long = {**body, "messages": [{"role": "user", "content": "word " * 400000}]}
        self.assertEqual(self.refused(self.server.post("/v1/chat/completions", long), 400)["code"], "context_length_exceeded")


if __name__ == "__main__":
    if HAS_NANO and len(sys.argv) == 2 and not has_grammars():
        print("skipped: this build has no XGrammar")
        sys.exit(77)
    main()
