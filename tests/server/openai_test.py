#!/usr/bin/env python3
"""/v1/chat/completions, /v1/completions and /v1/responses, field by field."""

import json
import unittest

from support import SUM, WEATHER, WEATHER_TOOL, ServerTestCase, main

EOS = "<｜end▁of▁sentence｜>"
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


def joined(events):
    """The message that a client builds from a stream of chunks."""
    message = {}
    for _, chunk in events:
        if chunk == "[DONE]" or not chunk["choices"]:
            continue
        for key, value in chunk["choices"][0]["delta"].items():
            if key == "tool_calls":
                calls = message.setdefault("tool_calls", [])
                for part in value:
                    while len(calls) <= part["index"]:
                        calls.append({"id": "", "name": "", "arguments": ""})
                    call = calls[part["index"]]
                    call["id"] += part.get("id", "")
                    call["name"] += part["function"].get("name", "")
                    call["arguments"] += part["function"].get("arguments", "")
            else:
                message[key] = message.get(key, "") + value
    return message


class Chat(ServerTestCase):
    def test_thinking_on_and_off(self):
        on = self.chat()
        message = on["choices"][0]["message"]
        self.assertEqual(message["content"], "27 + 48 = 75.")
        self.assertIn("write 5", message["reasoning_content"])
        self.assertNotIn("reasoning", message)
        usage = on["usage"]
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        for off in [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}, {"enable_thinking": False},
                    {"chat_template_kwargs": {"thinking": False}},
                    {"thinking": {"type": "disabled"}, "reasoning_effort": "high"}]:
            with self.subTest(off=off):
                reply = self.chat(**off)
                self.assertNotIn("reasoning_content", reply["choices"][0]["message"])
                self.assertEqual(reply["choices"][0]["message"]["content"], "27 + 48 = 75.")
                self.assertEqual(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)
        for effort in ["minimal", "low", "medium", "high", "xhigh", "max", "ultra"]:
            self.assertEqual(self.chat(reasoning_effort=effort, max_tokens=1)["choices"][0]["finish_reason"], "length")

    def test_a_stream_is_the_whole_reply_in_pieces(self):
        for messages, fields in [(SUM, {}), (SUM, {"enable_thinking": False}), (PARIS, {"tools": [WEATHER_TOOL]})]:
            whole = self.chat(messages, **fields)
            events = self.chat(messages, stream=True, stream_options={"include_usage": True}, **fields)
            message = joined(events)
            expected = dict(whole["choices"][0]["message"])
            calls = expected.pop("tool_calls", None)
            if calls:
                self.assertEqual([(c["name"], c["arguments"]) for c in message.pop("tool_calls")],
                                 [(c["function"]["name"], c["function"]["arguments"]) for c in calls])
                message.setdefault("content", "")
            self.assertEqual(message, expected)
            self.assertEqual(events[-1], (None, "[DONE]"))
            self.assertEqual(events[-2][1]["choices"], [])
            usage = events[-2][1]["usage"]
            self.assertEqual(usage["completion_tokens"], whole["usage"]["completion_tokens"])
            chunks = [chunk for _, chunk in events[:-2]]
            self.assertEqual({c["object"] for c in chunks}, {"chat.completion.chunk"})
            self.assertEqual(len({(c["id"], c["created"], c["model"]) for c in chunks}), 1)
            self.assertTrue(all(c["usage"] is None for c in chunks))
            # The role comes once, with the first token; the finish reason comes once, at the end.
            self.assertEqual([i for i, c in enumerate(chunks) if "role" in c["choices"][0]["delta"]], [0])
            self.assertGreater(len(chunks[0]["choices"][0]["delta"]), 1)
            reasons = [c["choices"][0]["finish_reason"] for c in chunks]
            self.assertEqual(reasons, [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]])

    def test_timings_as_llama_server_gives_them(self):
        def check(timings, usage):
            self.assertEqual(timings["predicted_n"], usage["completion_tokens"])
            self.assertEqual(timings["prompt_n"] + timings["cache_n"], usage["prompt_tokens"])
            self.assertAlmostEqual(timings["predicted_per_second"] * timings["predicted_ms"] / 1000,
                                   usage["completion_tokens"] - 1, delta=0.1)
            for name in ["prompt_ms", "prompt_per_second", "predicted_per_token_ms"]:
                self.assertGreater(timings[name], 0, name)
            self.assertGreaterEqual(timings["queue_ms"], 0)

        whole = self.chat(max_tokens=12)
        check(whole["timings"], whole["usage"])
        text = self.complete("And it came", max_tokens=12, ignore_eos=True)
        check(text["timings"], text["usage"])
        for chunks in [self.chat(max_tokens=12, stream=True, stream_options={"include_usage": True}),
                       self.complete("And it came", max_tokens=12, ignore_eos=True, stream=True, stream_options={"include_usage": True})]:
            chunks = [chunk for _, chunk in chunks if chunk != "[DONE]"]
            check(chunks[-1]["timings"], chunks[-1]["usage"])
            self.assertEqual([c for c in chunks[:-2] if "timings" in c], [])
            self.assertEqual(chunks[-2]["timings"]["predicted_n"], 12)
        chunks = [chunk for _, chunk in self.chat(max_tokens=12, stream=True, timings_per_token=True) if chunk != "[DONE]"]
        counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertGreater(len(set(counts)), 5)

    def test_progress_of_a_long_prompt(self):
        messages = [{"role": "user", "content": "A story. " * 700}]
        for ask in [lambda **f: self.chat(messages, **f), lambda **f: self.complete("Another story. " * 700, **f)]:
            chunks = [c for _, c in ask(max_tokens=2, stream=True, return_progress=True, stream_options={"include_usage": True})
                      if c != "[DONE]"]
            told = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
            total = chunks[-1]["usage"]["prompt_tokens"]
            self.assertGreaterEqual(len(told), 3)
            read = [p["processed"] for p in told]
            self.assertEqual(read, sorted(set(read)))
            self.assertGreater(read[0], 0)
            self.assertLessEqual(read[-1], total)
            self.assertGreater(read[-1], total - 600)
            self.assertEqual({p["total"] for p in told}, {total})
            self.assertGreater(told[-1]["time_ms"], told[0]["time_ms"])
            self.assertIn("prompt_progress", chunks[0])
            again = [c for _, c in ask(max_tokens=2, stream=True, return_progress=True) if c != "[DONE]"]
            first = again[0]["prompt_progress"]
            self.assertGreater(first["cache"], 0.9 * total)
            self.assertGreaterEqual(first["processed"], first["cache"])
        self.assertFalse(any("prompt_progress" in c for _, c in self.chat(max_tokens=2, stream=True) if c != "[DONE]"))

    def test_no_usage_unless_asked_for(self):
        events = self.chat(stream=True, max_tokens=3)
        self.assertFalse(any("usage" in chunk for _, chunk in events[:-1]))

    def test_tools_round_trip(self):
        reply = self.chat(PARIS, tools=[WEATHER_TOOL], enable_thinking=False)
        choice = reply["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        (call,) = choice["message"]["tool_calls"]
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "get_weather"))
        self.assertEqual(json.loads(call["function"]["arguments"])["city"], "Paris")
        self.assertTrue(call["id"].startswith("call_"))
        result = {"role": "tool", "tool_call_id": call["id"],
                  "content": '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}'}
        answer = self.chat([*PARIS, choice["message"], result], tools=[WEATHER_TOOL], enable_thinking=False)
        self.assertIn("18", answer["choices"][0]["message"]["content"])
        # Prompt and call of the first turn come from the prefix cache.
        self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                           0.8 * reply["usage"]["total_tokens"])

    def test_tool_choice(self):
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
        tools = [WEATHER_TOOL, other]
        none = self.chat(PARIS, tools=tools, tool_choice="none", max_tokens=40)["choices"][0]
        self.assertNotIn("tool_calls", none["message"])
        for thinking in [True, False]:
            for choice, names in [("required", {"get_weather", "get_time"}),
                                  ({"type": "function", "function": {"name": "get_time"}}, {"get_time"})]:
                reply = self.chat([{"role": "user", "content": "Hello!"}], tools=tools, tool_choice=choice, max_tokens=300,
                                  enable_thinking=thinking)["choices"][0]
                self.assertEqual(reply["finish_reason"], "tool_calls", reply)
                for call in reply["message"]["tool_calls"]:
                    self.assertIn(call["function"]["name"], names)
                    json.loads(call["function"]["arguments"])
                self.assertEqual(reply["message"]["content"], "")

    def test_a_call_that_is_cut_off_is_never_whole_json(self):
        body = {"tools": [WEATHER_TOOL], "enable_thinking": False}
        whole = self.chat(PARIS, **body)
        length = whole["usage"]["completion_tokens"]
        arguments = json.loads(whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
        for n in range(1, length, 3):
            choice = self.chat(PARIS, max_tokens=n, **body)["choices"][0]
            self.assertEqual(choice["finish_reason"], "length")
            for call in choice["message"].get("tool_calls", []):
                try:
                    self.assertEqual(json.loads(call["function"]["arguments"]), arguments)
                except ValueError:
                    self.assertEqual(choice["finish_reason"], "length")

    def test_logprobs(self):
        whole = self.chat(logprobs=True, top_logprobs=3, max_tokens=6)
        entries = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(entries), 6)
        for entry in entries:
            self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])  # greedy
            self.assertLessEqual(entry["logprob"], 0)
        events = self.chat(logprobs=True, top_logprobs=3, max_tokens=6, stream=True)
        streamed = [e for _, c in events[:-1] for e in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
        self.assertEqual(streamed, entries)
        self.assertIsNone(self.chat(max_tokens=1)["choices"][0]["logprobs"])

    def test_n_and_seeds(self):
        body = {"n": 3, "temperature": 3, "seed": 7, "max_tokens": 12, "enable_thinking": False}
        one, two = self.chat(**body), self.chat(**body)
        texts = [c["message"]["content"] for c in one["choices"]]
        self.assertEqual(texts, [c["message"]["content"] for c in two["choices"]])
        self.assertEqual([c["index"] for c in one["choices"]], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)
        self.assertGreater(one["usage"]["completion_tokens"], 12)
        self.assertEqual(self.chat(**{**body, "n": 1})["choices"][0]["message"]["content"], texts[0])
        events = self.chat(stream=True, **body)
        for index in range(3):
            text = "".join(c["choices"][0]["delta"].get("content", "") for _, c in events[:-1] if c["choices"][0]["index"] == index)
            self.assertEqual(text, texts[index])

    def test_seeds_of_64_bits(self):
        """Signed and unsigned: `dsv4 generate` prints unsigned ones."""
        text = {seed: self.complete("And it", seed=seed, temperature=2, max_tokens=8)["choices"][0]["text"]
                for seed in [5, -5, 2**64 - 5, 2**63]}
        self.assertEqual(text[-5], text[2**64 - 5])
        self.assertEqual(len(set(text.values())), 3)
        reply = self.server.post("/v1/completions", {"prompt": "a", "seed": 2**64})
        self.assertTrue(self.refused(reply, 400, "seed")["message"].endswith("expected a whole number"))

    def test_a_top_p_of_0_is_greedy(self):
        likeliest = self.complete("And it came", max_tokens=12)["choices"][0]["text"]
        for fields in [{}, {"top_k": 50}, {"top_k": -1}]:
            reply = self.complete("And it came", max_tokens=12, temperature=2, seed=1, top_p=0, **fields)
            self.assertEqual(reply["choices"][0]["text"], likeliest)

    def test_half_a_character_is_no_reason_to_refuse_a_chat(self):
        """JavaScript cuts texts by UTF-16 units and writes half of a surrogate pair as an escape."""
        for written, meant in [(r"a\ud83d", "a\ufffd"), (r"\ude42b", "\ufffdb"), (r"\ud83d\ud83d\ude42", "\ufffd🙂"),
                               (r"\\ud83d \ud83d\ude42", r"\ud83d 🙂"), (r"\uD83D\n\uDE42", "\ufffd\n\ufffd")]:
            body = '{"prompt": "%s", "add_special_tokens": false}' % written
            ids = self.server.post("/tokenize", body).json
            self.assertEqual(self.server.post("/detokenize", ids).json, {"prompt": meant}, written)
        self.refused(self.server.post("/tokenize", r'{"prompt": "\ud83x"}'), 400, "not valid JSON")

    def test_an_error_does_not_give_back_what_was_sent(self):
        long = "ä" * 200000
        for path, body in [("completions", ('{"prompt": "%s\\q"}' % long).encode()), ("chat/completions", {"messages": [{"role": long}]}),
                           ("chat/completions", {"messages": SUM, "logit_bias": {long: 1}}),
                           ("responses", {"input": "a", "previous_response_id": long})]:
            reply = self.server.post("/v1/" + path, body)
            self.refused(reply, 400, "...")
            self.assertLess(len(reply.body), 2000)

    def test_stops_hold_in_the_content_only(self):
        choice = self.chat(stop=["= 7", "write"])["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]),
                         ("27 + 48 ", "stop", "= 7"))
        self.assertIn("write", choice["message"]["reasoning_content"])
        choice = self.chat(stop="75", include_stop_str_in_output=True)["choices"][0]
        self.assertEqual(choice["message"]["content"], "27 + 48 = 75")

    def test_small_max_tokens_gives_a_string(self):
        choice = self.chat(max_tokens=3)["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("", "length"))
        self.assertEqual(self.chat(max_completion_tokens=3)["usage"]["completion_tokens"], 3)

    def test_a_thinking_budget_is_kept_to_the_token(self):
        reply = self.chat(thinking={"type": "enabled", "budget_tokens": 5})
        self.assertEqual(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.assertTrue(reply["choices"][0]["message"]["content"])

    def test_logit_bias_ignore_eos_min_tokens(self):
        first = self.complete("And it came", max_tokens=1, logprobs=1)["choices"][0]["logprobs"]["tokens"][0]
        (token,) = self.server.post("/tokenize", {"prompt": first, "add_special_tokens": False}).json["tokens"]
        banned = self.complete("And it came", max_tokens=1, logit_bias={str(token): -100})["choices"][0]["text"]
        self.assertNotEqual(banned, first)
        eos = {"logit_bias": {"1": 100}, "max_tokens": 5}
        self.assertEqual(self.complete("And", **eos)["usage"]["completion_tokens"], 1)
        self.assertEqual(self.complete("And", **eos)["choices"][0]["finish_reason"], "stop")
        self.assertEqual(self.complete("And", ignore_eos=True, **eos)["usage"]["completion_tokens"], 5)
        self.assertEqual(self.complete("And", min_tokens=3, **eos)["usage"]["completion_tokens"], 4)
        self.assertEqual(self.complete("And it came", stop_token_ids=[token])["choices"][0]["text"], "")
        self.assertEqual(self.complete("And it came", stop_token_ids=[5, token] * 2000)["choices"][0]["text"], "")

    def test_fields_are_checked(self):
        for fields, status, param, words in [
            ({"messages": []}, 400, "messages", "empty"),
            ({"messages": None}, 400, "messages", "missing"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", "wizard"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
             "messages[0].content", "text only"),
            ({"messages": SUM, "continue_final_message": True}, 400, "messages", "only an assistant message"),
            ({"temperature": -1}, 400, "temperature", "-1"),
            ({"temperature": "hot"}, 400, "temperature", "hot"),
            ({"top_p": 1.5}, 400, "top_p", "1.5"),
            ({"n": 0}, 400, "n", "0"),
            ({"n": 100000}, 400, "n", "100000"),
            ({"max_tokens": 0}, 400, "max_tokens", "0"),
            ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens", "differ"),
            ({"top_logprobs": 2}, 400, "top_logprobs", "logprobs"),
            ({"logprobs": True, "top_logprobs": 5000}, 400, "top_logprobs", "5000"),
            ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
            ({"stop": [1]}, 400, "stop", "strings"),
            ({"stop": ["x"] * 65}, 400, "stop", "65 entries"),
            ({"stop": ["x" * 10000, "y" * 10000]}, 400, "stop", "16384 bytes"),
            ({"stop_token_ids": list(range(1025))}, 400, "stop_token_ids", "1025 different ids"),
            ({"logit_bias": {"4096": 1}}, 400, "logit_bias", "4096"),
            ({"logit_bias": {"-1": 1}}, 400, "logit_bias", "-1"),
            ({"logit_bias": {"5": 1000}}, 400, "logit_bias", "5"),
            ({"logit_bias": [1]}, 400, "logit_bias", "object"),
            ({"tool_choice": "required"}, 400, "tool_choice", "tools is empty"),
            ({"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, "tool_choice", "x"),
            ({"tools": [WEATHER_TOOL], "tool_choice": "sometimes"}, 400, "tool_choice", "required"),
            ({"tools": [{"type": "function"}]}, 400, "tools[0].function", "missing"),
            ({"tools": [{"type": "retrieval"}]}, 400, "tools[0].type", "retrieval"),
            ({"reasoning_effort": "extreme"}, 400, "reasoning_effort", "extreme"),
            ({"response_format": {"type": "xml"}}, 400, "response_format.type", "json_schema"),
            ({"functions": [{}]}, 400, "functions", "tools"),
            ({"best_of": 3}, 400, "best_of", "n"),
            ({"seed": 1.5}, 400, "seed", "1.5"),
            ({"messages": [{"role": "user", "content": "0" * 1050000}]}, 400, "messages", "1048576"),
        ]:
            with self.subTest(fields=str(fields)[:100]):
                body = {"messages": SUM, "temperature": 0, "max_tokens": 1, **fields}
                if fields.get("max_completion_tokens"):
                    body["max_tokens"] = 5
                error = self.refused(self.server.post("/v1/chat/completions", body), status, words)
                self.assertEqual(error["param"], param)
                self.assertEqual(error["type"], "invalid_request_error")

    def test_harmless_fields_are_ignored(self):
        self.chat(max_tokens=1, user="me", metadata={"a": "b"}, store=False, parallel_tool_calls=True, service_tier="auto",
                  modalities=["text"], response_format={"type": "text"}, tools=[], functions=None, best_of=1,
                  something_new={"x": [1]}, stop=[], stop_token_ids=[], repetition_penalty=1.0, top_k=-1,
                  guided_json=None, model="whatever")

    def test_roles_and_parts(self):
        parts = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be exact."},
                 {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "27 + 48?"}]},
                 {"role": "assistant", "content": None, "reasoning": "I add.", "refusal": None},
                 {"role": "user", "content": "Well?"}]
        self.chat(parts, max_tokens=1)

    def test_continuing_a_reply(self):
        start = [*SUM, {"role": "assistant", "content": "27 + 48 = ", "prefix": True}]
        self.assertEqual(self.chat(start, enable_thinking=False)["choices"][0]["message"]["content"], "75.")
        start[-1].pop("prefix")
        reply = self.chat(start, enable_thinking=False, continue_final_message=True, add_generation_prompt=False)
        self.assertEqual(reply["choices"][0]["message"]["content"], "75.")


class Completions(ServerTestCase):
    def test_texts_ids_and_batches(self):
        text = "And it came to pass"
        ids = self.server.post("/tokenize", {"prompt": text}).json["tokens"]
        single = self.complete(text, max_tokens=6)["choices"][0]["text"]
        self.assertEqual(self.complete(ids, max_tokens=6)["choices"][0]["text"], single)
        batch = self.complete([text, "In the beginning", text], max_tokens=6)
        self.assertEqual([c["index"] for c in batch["choices"]], [0, 1, 2])
        self.assertEqual([batch["choices"][i]["text"] for i in (0, 2)], [single, single])
        mixed = self.complete([ids, ids[:3]], max_tokens=6, n=2)
        self.assertEqual(len(mixed["choices"]), 4)
        self.assertEqual(mixed["choices"][1]["text"], single)
        self.assertEqual(mixed["usage"]["prompt_tokens"], len(ids) + 3)
        # Ids are used as they are; texts get BOS unless the request says otherwise.
        self.assertEqual(self.complete(text, max_tokens=1, add_special_tokens=False)["usage"]["prompt_tokens"], len(ids) - 1)

    def test_echo_with_logprobs_as_lm_eval_reads_it(self):
        ids = self.server.post("/tokenize", {"prompt": "And it came to pass, when the king"}).json["tokens"]
        # Longer than one chunk of the prompt, so that rows of several chunks join.
        long_ids = ids * 80
        body = {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        reply = self.complete([ids, long_ids], **body)
        for choice, prompt in zip(reply["choices"], [ids, long_ids]):
            logprobs = choice["logprobs"]
            for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"]:
                self.assertEqual(len(logprobs[key]), len(prompt) + 1, key)
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertIsNone(logprobs["top_logprobs"][0])
            for token, value, top in list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))[1:]:
                self.assertEqual(top[token], value)  # exactly the same number
                self.assertGreaterEqual(max(top.values()), value)
        # Decoding one token at a time gives the same numbers.
        prefix, expected = ids[:4], reply["choices"][0]["logprobs"]["token_logprobs"]
        last = self.complete(ids[:-1], max_tokens=1, logprobs=100)["choices"][0]["logprobs"]["top_logprobs"][0]
        token = reply["choices"][0]["logprobs"]["tokens"][len(ids) - 1]
        if token in last:
            self.assertAlmostEqual(last[token], expected[len(ids) - 1], places=5)
        streamed = self.complete(ids, stream=True, **body)
        tokens = [t for _, c in streamed[:-1] for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
        self.assertEqual(tokens, reply["choices"][0]["logprobs"]["tokens"])
        self.assertEqual("".join(c["choices"][0]["text"] for _, c in streamed[:-1]), reply["choices"][0]["text"])
        self.assertEqual(self.complete(prefix, max_tokens=0, echo=True)["usage"]["completion_tokens"], 0)

    def test_the_token_that_ends_a_reply_has_log_probabilities(self):
        """lm-evaluation-harness requests one token and removes the last entry. Without one for EOS it would lose a
        token of the text that it scores."""
        ids = self.server.post("/tokenize", {"prompt": "And it came to pass, when the king"}).json["tokens"]
        (eos,) = self.server.post("/tokenize", {"prompt": EOS, "add_special_tokens": False}).json["tokens"]
        stop = {"logit_bias": {str(ids[-1]): 100}, "stop_token_ids": ids[-1:]}
        for bias, ends in [({"logit_bias": {str(eos): 100}}, EOS), (stop, " king")]:
            body = {"max_tokens": 3, "logprobs": 1, "echo": True, "temperature": 0, **bias}
            choice = self.complete(ids, **body)["choices"][0]
            logprobs = choice["logprobs"]
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertEqual({len(entries) for entries in logprobs.values()}, {len(ids) + 1})
            self.assertEqual(logprobs["tokens"][-1], ends)
            self.assertEqual(logprobs["top_logprobs"][-1][ends], logprobs["token_logprobs"][-1])
            events = self.complete(ids, stream=True, return_token_ids=True, **body)
            pieces = [c["choices"][0] for _, c in events[:-1]]
            self.assertEqual([t for p in pieces for t in (p["logprobs"] or {"tokens": []})["tokens"]], logprobs["tokens"])
            self.assertEqual(len([i for p in pieces for i in p["token_ids"]]), 1)
            self.assertEqual("".join(p["text"] for p in pieces), choice["text"])

    def test_log_probabilities_of_a_reply_are_bounded(self):
        body = {"prompt": list(range(10, 2710)), "echo": True, "logprobs": 100, "max_tokens": 0}
        reply = self.server.post("/v1/completions", body)
        self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "logprobs"), reply.json)
        self.assertEqual(self.server.post("/v1/completions", {**body, "logprobs": 1}).status, 200)

    def test_text_offsets_point_into_the_text(self):
        choice = self.complete("Ünd it came 🙂 to", max_tokens=8, echo=True, logprobs=0)["choices"][0]
        logprobs = choice["logprobs"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
            if token.startswith(" ") or token.isalpha():
                self.assertEqual(choice["text"][offset:offset + len(token)], token)

    def test_a_stream_has_the_same_text(self):
        body = {"max_tokens": 20, "stop": ["xyzzy"]}
        whole = self.complete("And it came to pass", **body)
        events = self.complete("And it came to pass", stream=True, stream_options={"include_usage": True}, **body)
        chunks = [c for _, c in events[:-1]]
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks[:-1]), whole["choices"][0]["text"])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 20)
        self.assertEqual({c["object"] for c in chunks}, {"text_completion"})

    def test_fields_are_checked(self):
        for fields, words in [({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "empty"),
                              ({"prompt": [4096]}, "4096"), ({"prompt": [-1]}, "-1"), ({"prompt": [1, "a"]}, "prompt[1]"),
                              ({"prompt": ["a", 1]}, "prompt[1]"), ({"prompt": {"a": 1}}, "prompt"),
                              ({"suffix": 5}, "suffix"), ({"logprobs": -1}, "logprobs"), ({"max_tokens": -1}, "max_tokens"),
                              ({"prompt": ["a"] * 600, "n": 2}, "1024"), ({"guided_regex": "a("}, "guided_regex")]:
            with self.subTest(fields=str(fields)[:80]):
                self.refused(self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **fields}), 400, words)


class Responses(ServerTestCase):
    def respond(self, **body):
        reply = self.server.post("/v1/responses", {"temperature": 0, **body})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.events() if body.get("stream") else reply.json

    def test_events_and_whole_reply_agree(self):
        tool = {"type": "function", **WEATHER}
        for body in [{"input": SUM[0]["content"]}, {"input": SUM, "reasoning": {"effort": "none"}},
                     {"input": PARIS, "tools": [tool], "reasoning": {"effort": "high"}}]:
            whole = self.respond(**body)
            events = self.respond(stream=True, **body)
            self.assertTrue(all(event == data["type"] for event, data in events))
            self.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
            self.assertEqual([e for e, _ in events[:2]], ["response.created", "response.in_progress"])
            self.assertEqual(events[-1][0], "response.completed")

            def plain(output):
                return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]
            self.assertEqual(plain(events[-1][1]["response"]["output"]), plain(whole["output"]))
            self.assertEqual([d["item"] for e, d in events if e == "response.output_item.done"],
                             events[-1][1]["response"]["output"])
            for i, item in enumerate(whole["output"]):
                if item["type"] == "function_call":
                    kind, text = "response.function_call_arguments.delta", item["arguments"]
                elif item["type"] == "reasoning":
                    kind, text = "response.reasoning_text.delta", item["content"][0]["text"]
                else:
                    kind, text = "response.output_text.delta", item["content"][0]["text"]
                self.assertEqual("".join(d["delta"] for e, d in events if e == kind and d["output_index"] == i), text)
            usage = whole["usage"]
            self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_calls_and_their_outputs(self):
        tool = {"type": "namespace", "name": "mcp", "tools": [{"type": "function", **WEATHER}]}
        for tools, name in [([{"type": "function", **WEATHER}, {"type": "web_search"}], "get_weather"),
                            ([tool], "get_weather")]:
            body = {"tools": tools, "reasoning": {"effort": "none"}, "tool_choice": "required"}
            first = self.respond(input=PARIS, **body)
            (call,) = [item for item in first["output"] if item["type"] == "function_call"]
            self.assertEqual(call["name"], name)
            self.assertEqual(call.get("namespace"), "mcp" if tools[0] is tool else None)
            body.pop("tool_choice")
            result = {"type": "function_call_output", "call_id": call["call_id"],
                      "output": '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}'}
            second = self.respond(input=[*PARIS, *first["output"], result], **body)
            self.assertEqual(second["status"], "completed")

    def test_too_few_tokens_is_incomplete(self):
        whole = self.respond(input="Hi", max_output_tokens=2)
        self.assertEqual((whole["status"], whole["incomplete_details"]["reason"]), ("incomplete", "max_output_tokens"))
        self.assertEqual(self.respond(input="Hi", max_output_tokens=2, stream=True)[-1][0], "response.incomplete")

    def test_what_codex_sends(self):
        self.respond(input=[], max_output_tokens=1)
        self.respond(model="gpt-5-codex", instructions="You are an agent.", store=False, include=["reasoning.encrypted_content"],
                     prompt_cache_key="k", client_metadata={"x": "y"}, parallel_tool_calls=False, max_output_tokens=1,
                     tools=[{"type": "image_generation"}], tool_choice="auto", reasoning={"effort": "medium", "summary": "auto"},
                     input=[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
                            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                            {"type": "function_call", "name": "a", "call_id": "1", "arguments": "{}"},
                            {"type": "function_call", "name": "b", "call_id": "2", "arguments": "{\"x\": 1}"},
                            {"type": "function_call_output", "call_id": "1", "output": "one"},
                            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]}])

    def test_fields_are_checked(self):
        for body, param in [({"input": 1}, "input"), ({"input": [{"thought": "x"}]}, "input[0].type"),
                            ({"previous_response_id": "resp_1", "input": "x"}, "previous_response_id"),
                            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
                            ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
                            ({"input": "x", "background": True}, "background")]:
            self.assertEqual(self.refused(self.server.post("/v1/responses", body), 400)["param"], param)


class StrictModel(ServerTestCase):
    FLAGS = ["--strict-model", "--served-model-name", "deepseek", "--reasoning-field", "both", "--default-thinking", "off"]

    def test_names_and_defaults(self):
        for name in ["gpt-4", "deepseek[2m]", "deepseek[1m][1m]", "[1m]", "x[1m]", "1m]"]:
            self.refused(self.server.post("/v1/chat/completions", {"model": name, "messages": SUM}), 404, "'%s'" % name, "deepseek")
        for name in ["deepseek[1m]", "deepseek[1M]"]:  # Claude Code's mark of a long context
            self.assertEqual(self.chat(model=name)["model"], "deepseek")
        reply = self.chat(model="deepseek")
        self.assertEqual(reply["model"], "deepseek")
        self.assertNotIn("reasoning_content", reply["choices"][0]["message"])
        message = self.chat(reasoning_effort="high")["choices"][0]["message"]
        self.assertEqual(message["reasoning"], message["reasoning_content"])


if __name__ == "__main__":
    main()
