#!/usr/bin/env python3
"""Drafts through `dsv4 serve`: no reply changes, alone and among others."""

import json
import threading

from support import SUM, WEATHER_TOOL, ServerTestCase, in_parallel, main

PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


class Drafts(ServerTestCase):
    FLAGS = ["--speculate", "lookup", "--draft-threshold", "0"]

    def test_change_nothing(self):
        repeated = "And it came to pass in the days of the king. " * 12
        prompts = [repeated, [310, 42, 310, 42] * 20, "Say: one two three one two three one two three"]
        for fields in [{"temperature": 0}, {"temperature": 0.7, "seed": 3, "n": 3}, {"temperature": 0.9, "seed": 4, "presence_penalty": 0.5}]:
            body = {"max_tokens": 40, "ignore_eos": True, "logprobs": 2, "stop": ["king. And it came to pass in the days of the king. x"], **fields}
            without = [self.complete(prompt, speculate=False, **body) for prompt in prompts]
            with_drafts = [self.complete(prompt, **body) for prompt in prompts]
            self.assertEqual([r["choices"] for r in with_drafts], [r["choices"] for r in without])
            for reply in without:
                self.assertNotIn("accepted_prediction_tokens", reply["usage"]["completion_tokens_details"])
        self.check_counts()

    def check_counts(self):
        drafts = self.server.metric("vllm:spec_decode_num_draft_tokens_total")
        accepted = self.server.metric("vllm:spec_decode_num_accepted_tokens_total")
        self.assertGreater(accepted, 0)
        self.assertGreater(drafts, accepted)
        self.assertEqual(self.server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted)
        self.assertEqual(self.server.metric("dsv4_spec_decode_num_draft_tokens_per_pos_total"), drafts)
        self.assertGreater(self.server.metric("dsv4_decode_steps_total"), 0)
        self.assertGreater(self.server.metric("dsv4_spec_decode_seconds_total"), 0)

    def test_change_nothing_among_others(self):
        """Each request gets the same reply among others that draft, end or leave as alone without drafts."""
        bodies = []
        for i in range(16):
            fields = [{"temperature": 0}, {"temperature": 0.8, "seed": i}, {"temperature": 1, "seed": i, "presence_penalty": 0.4},
                      {"temperature": 0.7, "seed": i, "structured_outputs": {"regex": "[a-z ,]{5,60}"}}][i % 4]
            bodies.append({"prompt": "And it came to pass in the days of the king. " * (1 + 3 * (i % 3)), "logprobs": i % 3 or None,
                           "max_tokens": 12 + 5 * (i % 5), "ignore_eos": i % 4 != 3, "stop": ["kings"], **fields})
        without = [self.complete(speculate=False, **body)["choices"] for body in bodies]
        stop = threading.Event()

        def leave():
            while not stop.wait(0.05):
                with self.server.socket() as sock:
                    data = json.dumps({"prompt": "And it came to pass", "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
                    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
                    sock.recv(100)

        leaver = threading.Thread(target=leave)
        leaver.start()
        try:
            for order in [1, -1]:
                calls = [lambda body=body: self.complete(**body)["choices"] for body in bodies[::order]]
                self.assertEqual(in_parallel(calls)[::order], without)
        finally:
            stop.set()
            leaver.join()
        self.server.wait_until_idle()
        self.check_counts()

    def test_calls_and_structured_output(self):
        schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}
        wanted = [{"messages": PARIS, "tools": [WEATHER_TOOL], "max_tokens": 80},
                  {"messages": SUM, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, "max_tokens": 60},
                  {"messages": SUM, "enable_thinking": True, "thinking_budget": 12, "max_tokens": 60}]
        for body in wanted:
            replies = []
            for speculate in [False, True]:
                message = self.chat(speculate=speculate, **body)["choices"][0]["message"]
                for call in message.get("tool_calls") or []:
                    call.pop("id")  # random
                replies.append(message)
            self.assertEqual(*replies)

    def test_grammars_keep_what_they_allow(self):
        """A grammar that allows any text costs no draft. A required call is drafted like one that is not required."""

        def accepted(reply):
            return reply["usage"]["completion_tokens_details"].get("accepted_prediction_tokens", 0)

        body = {"prompt": "And it came to pass in the days of the king. " * 12, "max_tokens": 90, "ignore_eos": True, "temperature": 0}
        free = self.complete(**body)
        held = self.complete(structured_outputs={"regex": r"[\s\S]*"}, **body)
        self.assertEqual(held["choices"][0]["text"], free["choices"][0]["text"])
        self.assertGreater(accepted(free), 20)
        self.assertGreaterEqual(accepted(held), 0.9 * accepted(free))

        auto, required = (self.chat(messages=PARIS, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=80) for choice in ("auto", "required"))
        call, required_call = (reply["choices"][0]["message"]["tool_calls"][0]["function"] for reply in (auto, required))
        self.assertEqual(required_call, call)
        # The forced beginning of the call needs no draft.
        self.assertGreaterEqual(accepted(required), 0.5 * accepted(auto))

    def test_usage_counts_what_metrics_count(self):
        before = self.server.metric("vllm:spec_decode_num_accepted_tokens_total")
        text = "And it came to pass in the days of the king. " * 6
        told = 0
        for stop, limit in [("king", 60), ("days", 7), (None, 31)]:
            reply = self.complete(text, max_tokens=limit, temperature=0, stop=stop)
            accepted = reply["usage"]["completion_tokens_details"].get("accepted_prediction_tokens", 0)
            self.assertEqual(reply["timings"].get("draft_n_accepted", 0), accepted)
            self.assertGreaterEqual(reply["timings"].get("draft_n", 0), accepted)
            told += accepted
        reply = self.server.post("/v1/responses", {"input": text, "max_output_tokens": 60, "temperature": 0, "store": False}).json
        told += reply["usage"]["output_tokens_details"].get("accepted_prediction_tokens", 0)
        self.server.wait_until_idle()
        self.assertGreater(told, 0)
        self.assertEqual(self.server.metric("vllm:spec_decode_num_accepted_tokens_total") - before, told)

    def test_messages_do_without_them_too(self):
        body = {"messages": SUM, "max_tokens": 60, "temperature": 0}

        def drafted(**more):
            before = self.server.metric("vllm:spec_decode_num_draft_tokens_total")
            content = self.server.post("/v1/messages", {**body, **more}).json["content"]
            return content, self.server.metric("vllm:spec_decode_num_draft_tokens_total") - before

        without, drafts = drafted(speculate=False)
        self.assertEqual(drafts, 0)
        self.assertEqual(drafted()[0], without)
        refused = self.server.post("/v1/messages", {**body, "speculate": "no"})
        self.assertEqual(refused.status, 400)
        self.assertIn("speculate", refused.json["error"]["message"])


class DsparkDrafts(Drafts):
    """With the bundled model's own draft module, which is right sometimes."""

    FLAGS = ["--speculate", "dspark", "--draft-threshold", "0"]


class MtpDraftsOfTwoRanks(Drafts):
    FLAGS = ["--speculate", "mtp", "--draft-threshold", "0", "--device", "cpu*2"]


class DraftsByThePolicy(Drafts):
    """dsv4 chooses the module and the number of tokens, so there may be no drafts."""

    FLAGS = ["--speculate", "auto"]
    test_grammars_keep_what_they_allow = test_usage_counts_what_metrics_count = None

    def check_counts(self):
        pass


if __name__ == "__main__":
    main()
