#!/usr/bin/env python3
"""Fields of other servers and services: each is honoured or refused by name, and a value that changes nothing is accepted."""

import json
import re
import unittest

from support import SUM, ServerTestCase, main

HI = [{"role": "user", "content": "Hello!"}]
OFF = {"thinking": {"type": "disabled"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
EOS = "<｜end▁of▁sentence｜>"
# Valid bodies, to which a test adds fields.
BODIES = {"/v1/chat/completions": {"messages": HI, "max_tokens": 2, **OFF}, "/v1/completions": {"prompt": "a", "max_tokens": 2},
          "/v1/responses": {"input": "a", "max_output_tokens": 2}, "/v1/messages": {"messages": HI, "max_tokens": 2}}


def choices_of(events):
    return [choice for _, data in events if data != "[DONE]" for choice in data["choices"]]


class Fields(ServerTestCase):
    def text(self, messages=HI, **fields):
        return self.chat(messages, **fields)["choices"][0]["message"]["content"]


class Refused(Fields):
    def test_a_field_of_another_engine_is_refused_with_what_to_do(self):
        wanted = {
            "/v1/chat/completions": [
                {"kv_transfer_params": {"do_remote_decode": True}}, {"cache_salt": "tenant"}, {"lora_path": "adapter"}, {"mirostat": 2},
                {"dry_multiplier": 0.8}, {"xtc_probability": 0.5}, {"typical_p": 0.9}, {"top_n_sigma": 1}, {"documents": [{"text": "x"}]},
                {"chat_template": "{{ messages }}"}, {"input_ids": [1, 2]}, {"custom_logit_processor": "x"}, {"bad_words": ["x"]},
                {"modalities": ["text", "audio"]}, {"audio": {"voice": "x"}}, {"web_search_options": {}}, {"plugins": [{"id": "web"}]},
                {"options": {"num_ctx": 4096}}, {"format": "json"}, {"transforms": ["middle-out"]}, {"guardrails": ["x"]}, {"system": "Be brief."},
                {"tool_prompt": "x"}, {"guideline": "x"}, {"response_prefix": "x"}, {"template_vars": {"a": 1}}, {"adaptive_target": 0.5},
                {"max_temp": 2}, {"num_predict": 5}, {"return_prompt_token_ids": True}, {"parse_tool_calls": False}, {"grammar_lazy": True},
                {"stream_reasoning": False}, {"num_beams": 4}, {"guidance_scale": 1.5}, {"priority": -1}, {"functions": [{}]},
                {"repeat_last_n": 64, "repeat_penalty": 1.1}, {"reasoning_format": "deepseek-legacy"}, {"search_parameters": {"mode": "on"}}],
            "/v1/completions": [{"kv_transfer_params": {"a": 1}}, {"cache_salt": "x"}, {"mirostat": 1}, {"n_probs": 3}, {"add_bos_token": False}, {"lora": [{"id": 0}]}],
            "/v1/responses": [{"max_tool_calls": 1}, {"context_management": [{"type": "compaction"}]}, {"max_tokens": 5}, {"mirostat": 2},
                              {"response_format": {"type": "json_object"}}, {"messages": HI}, {"n": 2}, {"cache_salt": "x"}],
        }
        for path, bodies in wanted.items():
            for fields in bodies:
                error = self.refused(self.server.post(path, {**BODIES[path], **fields}), 400, next(iter(fields)))
                self.assertEqual(error["param"], next(iter(fields)))
                self.assertRegex(error["message"], r"(: .{5}|; )", "what to do")
        for fields in [{"mcp_servers": [{"type": "url", "url": "https://mcp.example"}]}, {"container": "x"}, {"cache_salt": "x"}, {"stop": ["x"]},
                       {"response_format": {"type": "json_object"}}, {"chat_template_kwargs": {"thinking": True}}]:
            reply = self.server.post("/v1/messages", {**BODIES["/v1/messages"], **fields})
            self.assertEqual((reply.status, reply.json["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn(next(iter(fields)), reply.json["error"]["message"])

    def test_a_value_that_changes_nothing_is_accepted(self):
        schemas = self.server.get("/openapi.json").json["paths"]
        count = 0
        for path, body in BODIES.items():
            schema = schemas[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            refused = [name for name, field in schema["properties"].items() if field.get("deprecated")]
            count += len(refused)
            self.assertEqual(self.server.post(path, {**dict.fromkeys(refused), **body}).status, 200, path)
            for off in [False, 0, "", [], {}]:
                # Each of these names is meant if it is there at all, or is on unless it is false.
                own = {"web_search_options": [False], "search_parameters": [False, {}], "stream_reasoning": [], "parse_tool_calls": [], "add_bos_token": [], "modalities": [[]]}
                names = [name for name in refused if off in own.get(name, [off]) and type(off) in map(type, own.get(name, [off]))]
                reply = self.server.post(path, {**{name: off for name in names}, **body})
                self.assertEqual(reply.status, 200, (path, off, reply.body))
        self.assertGreater(count, 150)

    def test_what_frontends_always_send_changes_nothing(self):
        plain = self.text(max_tokens=12, **OFF)
        always = {"mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
                  "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1, "tfs_z": 1.0, "top_a": 0, "top_n_sigma": -1, "adaptive_target": -1, "min_temp": 1, "max_temp": 1.0, "transforms": [], "options": {}, "min_keep": 0,
                  "smoothing_factor": 0, "smoothing_curve": 1, "dynatemp_range": 0, "guidance_scale": 1, "negative_prompt": "", "num_beams": 1,
                  "repeat_penalty": 1, "repeat_last_n": 64, "samplers": [], "modalities": ["text"], "separate_reasoning": True,
                  "include_reasoning": True, "reasoning_format": "auto", "stream_reasoning": True, "documents": None, "regex": "",
                  "json_schema": "", "structured_outputs": {}, "allowed_token_ids": [], "suffix": None, "echo": False, "n_predict": -1,
                  "max_tokens": None, "max_completion_tokens": 12, "search_parameters": {"mode": "off"}, "thinking_budget": -1,
                  "x_my_field": 1, "kv_transfer_params": None, "cache_salt": "", "prompt_cache_key": "x", "top_k": -1}
        always.pop("n_predict")
        self.assertEqual(self.text(**always, **OFF), plain)


class Forms(Fields):
    def test_each_engines_name_of_a_form(self):
        yes_or_no = 'root ::= "yes" | "no"'
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{3}"}, "end": "</n>"}}
        older = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
        for fields, pattern in [
                ({"regex": "[0-9]{2}"}, r"\d\d"), ({"ebnf": yes_or_no}, "yes|no"), ({"grammar": yes_or_no}, "yes|no"),
                ({"json_schema": SCHEMA}, r'\{\s*"a"\s*:\s*-?\d+\s*\}'), ({"json_schema": json.dumps(SCHEMA)}, r'\{\s*"a"\s*:\s*-?\d+\s*\}'),
                ({"response_format": {"type": "json_object", "schema": SCHEMA}}, r'\{\s*"a"\s*:\s*-?\d+\s*\}'),
                ({"response_format": tag}, r"<n>\d{3}</n>"), ({"structural_tag": json.dumps(tag)}, r"<n>\d{3}</n>"),
                ({"structured_outputs": {"structural_tag": tag}}, r"<n>\d{3}</n>"), ({"structural_tag": older}, r"[^@]*")]:
            for path in ["/v1/chat/completions", "/v1/completions"]:
                reply = self.server.post(path, {**BODIES[path], "temperature": 0, "max_tokens": 60, "logit_bias": {}, **fields})
                self.assertEqual(reply.status, 200, (fields, reply.body))
                choice = reply.json["choices"][0]
                text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
                if choice["finish_reason"] == "stop":
                    self.assertRegex(text, "^(%s)$" % pattern)
                else:
                    self.assertIn(text[:1], "{<yn0123456789" if pattern != "[^@]*" else text[:1])

    def test_a_schema_of_json_object_is_shown_to_the_model(self):
        render = lambda form: self.server.post("/v1/chat/completions/render", {"messages": HI, "response_format": form}).json["token_ids"]  # noqa: E731
        self.assertEqual(render({"type": "json_object", "schema": SCHEMA}), render({"type": "json_schema", "json_schema": {"schema": SCHEMA}}))

    def test_forms_that_contradict_or_cannot_be(self):
        for fields, words in [
                ({"regex": "a", "ebnf": "root ::= \"b\""}, ["ebnf", "regex"]), ({"json_schema": SCHEMA, "guided_choice": ["a"]}, ["json_schema", "guided_choice"]),
                ({"response_format": {"type": "json_object"}, "grammar": "root ::= \"b\""}, ["grammar", "response_format"]),
                ({"json_schema": "{"}, ["json_schema", "JSON"]), ({"regex": "(("}, ["regex"]), ({"ebnf": "root ::="}, ["ebnf"]),
                ({"structural_tag": {"type": "structural_tag"}}, ["structural_tag", "format"]), ({"structural_tag": "x"}, ["structural_tag"]),
                ({"structured_outputs": {"structural_tag": {"format": {"type": "token", "token": 1}}}}, ["structural_tag", '"token"']),
                ({"structural_tag": {"format": {"type": "tag", "begin": {"type": "token", "token": 1}, "content": {"type": "any_text"}, "end": ""}}}, ["begin"]),
                ({"structural_tag": {"format": {"type": "any_text", "max_chars": 1000000000}}}, ["max_chars"]),
                ({"structural_tag": {"format": {"type": "triggered_tags", "triggers": ["<f", "<g"], "tags": [{"begin": "<f>", "content": {"type": "any_text"}, "end": "/"}]}}},
                 ["triggers[1]", "no tag"]),
                ({"structural_tag": {"format": {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "e" * 70000}}}, ["65536 bytes"]),
                ({"structural_tag": {"format": {"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": ""}}}, ["end string must be non-empty"]),
                ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "x*"}}, ["whitespace_pattern"]),
                ({"response_format": {"type": "json_object", "schema": "x"}}, ["response_format.schema"])]:
            self.refused(self.server.post("/v1/chat/completions", {**BODIES["/v1/chat/completions"], **fields}), 400, *words)


class Sampling(Fields):
    def test_allowed_token_ids(self):
        ids = self.server.post("/tokenize", {"prompt": "ABC", "add_special_tokens": False}).json["tokens"]
        reply = self.chat(HI, allowed_token_ids=ids, max_tokens=8, temperature=1, seed=3, return_token_ids=True, **OFF)["choices"][0]
        self.assertLessEqual(set(reply["token_ids"]), set(ids))
        self.assertEqual(reply["finish_reason"], "length")  # the end token is not among them
        eos = self.server.post("/tokenize", {"prompt": EOS, "add_special_tokens": False}).json["tokens"]
        for more in [{}, {"min_tokens": 3}]:
            choice = self.complete("a", allowed_token_ids=[*ids, *eos], max_tokens=8, ignore_eos=False, logit_bias={str(eos[0]): 100}, **more)["choices"][0]
            self.assertEqual((choice["finish_reason"], len(choice["text"]) > 0), ("stop", "min_tokens" in more))
        for bad in [[-1], [1 << 40], ["x"], "x"]:
            self.refused(self.server.post("/v1/completions", {"prompt": "a", "allowed_token_ids": bad}), 400, "allowed_token_ids")

    def test_allowed_token_ids_and_a_grammar(self):
        digits = [self.server.post("/tokenize", {"prompt": d, "add_special_tokens": False}).json["tokens"][0] for d in "12"]
        eos = self.server.post("/tokenize", {"prompt": EOS, "add_special_tokens": False}).json["tokens"]
        self.assertRegex(self.text(regex="[0-9]{3}", allowed_token_ids=digits + eos, **OFF), "^[12]{3}$")
        reply = self.server.post("/v1/chat/completions", {"messages": HI, **OFF, "regex": "[a-z]+", "allowed_token_ids": digits})
        self.assertEqual(reply.status, 400, reply.body)  # no token is left

    def test_other_names(self):
        self.assertEqual(self.text(repeat_penalty=1.3, max_tokens=12, **OFF), self.text(repetition_penalty=1.3, max_tokens=12, **OFF))
        self.assertNotEqual(self.text(repeat_penalty=5, max_tokens=12, **OFF), self.text(repeat_penalty=5, repeat_last_n=0, max_tokens=12, **OFF))
        self.assertEqual(self.text(do_sample=False, temperature=2, max_tokens=12, **OFF), self.text(max_tokens=12, **OFF))
        for name in ["n_predict", "max_new_tokens"]:
            self.assertEqual(self.chat(HI, **{name: 1}, **OFF)["usage"]["completion_tokens"], 1)
            self.assertEqual(self.complete("In the", **{name: 3})["usage"]["completion_tokens"], 3)
            self.refused(self.server.post("/v1/chat/completions", {"messages": HI, name: 3, "max_tokens": 4}), 400, name, "max_tokens")
        self.assertEqual(self.complete("a", logit_bias={"1": 100}, min_new_tokens=3, max_tokens=9)["usage"]["completion_tokens"], 4)
        self.assertEqual(self.chat(HI, n_predict=0, **OFF)["usage"]["completion_tokens"], 0)
        self.assertGreater(self.complete("In the", n_predict=-1, regex="[ab]{60}")["usage"]["completion_tokens"], 16)
        self.refused(self.server.post("/v1/completions", {"prompt": "a", "repeat_penalty": 1.1, "repetition_penalty": 1.2}), 400, "repeat_penalty")


class Reasoning(Fields):
    def reply(self, messages=SUM, **fields):
        return self.chat(messages, max_tokens=200, **fields)

    def streamed(self, **fields):
        found = {"content": "", "reasoning_content": ""}
        for choice in choices_of(self.reply(stream=True, **fields)):
            for name in found:
                found[name] += choice["delta"].get(name, "")
        return found

    def test_think(self):
        for off in [False, "none"]:
            self.assertEqual(self.reply(think=off)["choices"], self.reply(**OFF)["choices"])
        for on in [True, "high"]:
            self.assertIn("reasoning_content", self.reply(think=on)["choices"][0]["message"])
        self.refused(self.server.post("/v1/chat/completions", {"messages": SUM, "think": "much"}), 400, "think")
        self.refused(self.server.post("/v1/chat/completions", {"messages": SUM, "think": 5}), 400, "think")

    def test_a_budget_of_0_turns_it_off(self):
        for fields in [{"thinking_budget": 0}, {"thinking_token_budget": 0}, {"reasoning": {"max_tokens": 0}}, {"thinking": {"type": "enabled", "budget_tokens": 0}},
                       {"chat_template_kwargs": {"thinking_budget": 0}}, {"thinking_budget": 0, "reasoning_effort": "high"}]:
            message = self.reply(**fields)["choices"][0]["message"]
            self.assertNotIn("reasoning_content", message, fields)
            self.assertTrue(message["content"])
        reply = self.server.post("/v1/responses", {"input": "Hello!", "max_output_tokens": 9, "thinking_budget": 0}).json
        self.assertEqual([item["type"] for item in reply["output"]], ["message"])

    def test_a_budget_ends_it_after_that_number_of_tokens(self):
        for fields in [{"thinking_budget": 1}, {"thinking_token_budget": 2}, {"reasoning": {"max_tokens": 3}}, {"thinking_budget_tokens": 4}]:
            reply = self.reply(**fields)
            budget = int(re.search(r"\d", json.dumps(fields))[0])
            self.assertEqual(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], budget, fields)
            self.assertIn("reasoning_content", reply["choices"][0]["message"])
        self.assertEqual(self.reply(thinking_budget=-1)["choices"], self.reply()["choices"])

    def test_it_can_be_hidden(self):
        whole = self.reply()
        self.assertTrue(whole["choices"][0]["message"]["reasoning_content"])
        content = whole["choices"][0]["message"]["content"]
        for fields in [{"include_reasoning": False}, {"reasoning": {"exclude": True}}, {"reasoning_format": "hidden"}]:
            reply = self.reply(**fields)
            self.assertEqual(reply["choices"][0]["message"], {"role": "assistant", "content": content})
            self.assertEqual(reply["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            self.assertEqual(self.streamed(**fields), {"content": content, "reasoning_content": ""})
            answer = {k: v for k, v in fields.items() if k != "reasoning_format"}
            output = self.server.post("/v1/responses", {"input": "Hello!", "max_output_tokens": 200, **answer}).json["output"]
            self.assertEqual([item["type"] for item in output], ["message"] if answer else ["reasoning", "message"])

    def test_it_can_stay_in_the_content(self):
        message = self.reply()["choices"][0]["message"]
        expected = "<think>%s</think>%s" % (message["reasoning_content"], message["content"])
        for fields in [{"separate_reasoning": False}, {"reasoning_format": "none"}, {"reasoning_format": "raw"}]:
            self.assertEqual(self.reply(**fields)["choices"][0]["message"], {"role": "assistant", "content": expected})
            self.assertEqual(self.streamed(**fields), {"content": expected, "reasoning_content": ""})
        cut = self.chat(SUM, max_tokens=2, separate_reasoning=False)["choices"][0]["message"]["content"]
        self.assertTrue(cut.startswith("<think>") and "</think>" not in cut, cut)
        self.refused(self.server.post("/v1/chat/completions", {"messages": SUM, "separate_reasoning": False, "include_reasoning": False}), 400, "separate_reasoning")


class Ids(Fields):
    def test_the_ids_of_a_chat(self):
        for fields in [OFF, {"thinking_budget": 3}, {**OFF, "n": 2}]:
            body = {"messages": SUM, "temperature": 0, "max_tokens": 60, "return_token_ids": True, **fields}
            reply = self.server.post("/v1/chat/completions", body).json
            self.assertEqual(reply["prompt_token_ids"], self.server.post("/v1/chat/completions/render", {k: v for k, v in body.items() if k != "n"}).json["token_ids"])
            got = [c["token_ids"] for c in reply["choices"]]
            self.assertEqual(sum(map(len, got)), reply["usage"]["completion_tokens"])
            text = self.server.post("/detokenize", {"tokens": got[0]}).json["prompt"]
            self.assertTrue(text.endswith(reply["choices"][0]["message"]["content"] + EOS), text)
            events = self.chat(**{**body, "stream": True})
            self.assertEqual([d["prompt_token_ids"] for _, d in events if "prompt_token_ids" in d], [reply["prompt_token_ids"]])
            streamed = [[], []]
            for choice in choices_of(events):
                streamed[choice["index"]] += choice["token_ids"]
            self.assertEqual(streamed[:len(got)], got)
        self.assertNotIn("token_ids", self.chat(max_tokens=1)["choices"][0])

    def test_the_ids_of_completions(self):
        body = {"max_tokens": 5, "n": 2, "return_token_ids": True, "stop_token_ids": [5], "echo": True}
        choices = self.complete(["And it", "came to"], **body)["choices"]
        for i, choice in enumerate(choices):
            prompt = self.server.post("/tokenize", {"prompt": ["And it", "came to"][i // 2]}).json["tokens"]
            self.assertEqual(choice["prompt_token_ids"], prompt)
        streamed = {i: {"token_ids": [], "prompt_token_ids": []} for i in range(4)}
        for choice in choices_of(self.complete(["And it", "came to"], **body, stream=True)):
            for name in ["token_ids", "prompt_token_ids"]:
                streamed[choice["index"]][name] += choice.get(name, [])
        for i, choice in enumerate(choices):
            self.assertEqual(streamed[i], {name: choice[name] for name in streamed[i]})
        ids = [7] * 2000
        self.refused(self.server.post("/v1/completions", {"prompt": [ids] * 8, "n": 100, "max_tokens": 1, "return_token_ids": True}), 400, "return_token_ids")


class Echo(Fields):
    def test_the_content_begins_with_the_message_that_it_continues(self):
        messages = [*SUM, {"role": "assistant", "content": "The answer"}]
        plain = self.text(messages, max_tokens=6, **OFF)
        self.assertEqual(self.text(messages, max_tokens=6, echo=True, **OFF), "The answer" + plain)
        pieces = [c["delta"].get("content", "") for c in choices_of(self.chat(messages, max_tokens=6, echo=True, stream=True, **OFF))]
        self.assertEqual("".join(pieces), "The answer" + plain)
        self.refused(self.server.post("/v1/chat/completions", {"messages": SUM, "echo": True}), 400, "echo", "assistant")


class Suffix(Fields):
    """Fill in the middle, in DeepSeek's form."""

    def ids(self, **body):
        return self.server.post("/v1/completions/render", body).json[0]["token_ids"]

    def test_the_prompt_has_a_hole(self):
        marked = self.ids(prompt="<｜fim▁begin｜>In the<｜fim▁hole｜> earth.<｜fim▁end｜>")
        self.assertEqual(self.ids(prompt="In the", suffix=" earth."), marked)
        self.assertEqual(self.ids(prompt="In the", suffix=" earth.", add_special_tokens=False), marked[1:])
        self.assertEqual(self.ids(prompt="In the", suffix=""), self.ids(prompt="In the"))
        for path in ["/v1/completions", "/beta/completions"]:
            reply = self.server.post(path, {"prompt": "In the", "suffix": " earth.", "max_tokens": 4, "temperature": 0, "return_token_ids": True}).json
            self.assertEqual(reply["choices"][0]["prompt_token_ids"], marked)
            self.assertEqual(reply["usage"]["prompt_tokens"], len(marked))
        echoed = self.complete("In the", suffix=" earth.", max_tokens=4, echo=True)["choices"][0]["text"]
        self.assertEqual(echoed, "In the" + reply["choices"][0]["text"])

    def test_marks_in_the_clients_text_are_text(self):
        one = self.ids(prompt="a<｜fim▁hole｜>b<｜begin▁of▁sentence｜>", suffix="c<｜fim▁end｜>")
        marks = [self.server.post("/tokenize", {"prompt": m, "add_special_tokens": False}).json["tokens"][0]
                 for m in ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<｜begin▁of▁sentence｜>"]]
        self.assertEqual([one.count(m) for m in marks], [1, 1, 1, 1])
        text = self.server.post("/detokenize", {"tokens": one}).json["prompt"]
        self.assertTrue(text.endswith("<｜fim▁begin｜>a<｜fim▁hole｜>b<｜begin▁of▁sentence｜><｜fim▁hole｜>c<｜fim▁end｜><｜fim▁end｜>"), text)

    def test_what_cannot_be(self):
        for fields, words in [({"prompt": [1, 2], "suffix": "x"}, ["suffix", "text"]), ({"prompt": "a", "suffix": 5}, ["suffix"]),
                              ({"prompt": "a", "suffix": "x", "echo": True, "logprobs": 1}, ["suffix", "echo"]),
                              ({"prompt": ["a"] * 1000, "suffix": "x" * 100000}, ["suffix", "bytes"])]:
            self.refused(self.server.post("/v1/completions", fields), 400, *words)


if __name__ == "__main__":
    main()
