#!/usr/bin/env python3
"""The prefix cache: the same bits with and without it, alone and among others, cold and from disk; reuse in
conversations."""

import json
import os
import shutil
import tempfile
import unittest

from support import WEATHER_TOOL, HAS_NANO, Server, ServerTestCase, in_parallel, main

STORY = "And it came to pass in the days of the king that "
SYSTEM = {"role": "system", "content": "You are a helpful assistant. " + STORY * 60}
QUESTIONS = ["What is the weather in Paris?", "And what is 27 + 48?", "Thank you.", "What is the weather in Rome?", "What is 5 + 9?"]


def post(server, path, body):
    reply = server.post(path, body)
    if reply.status != 200:
        raise AssertionError("%d %s" % (reply.status, reply.body))
    return reply.json


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def output(reply):
    """The part of a reply that must always be the same: ids of calls are random."""
    choices = json.loads(json.dumps(reply["choices"]))
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls") or []:
            call.pop("id")
    return choices


# Completions with log-probabilities (exact numbers), chats with and without thinking and tools, and several choices.
REQUESTS = [
    ("/v1/completions", {"prompt": STORY * 30 + "he said", "max_tokens": 12, "temperature": 0.8, "seed": 1, "logprobs": 3}),
    ("/v1/completions", {"prompt": STORY * 30 + "she went", "max_tokens": 12, "temperature": 0, "logprobs": 3, "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTIONS[0]}], "tools": [WEATHER_TOOL], "max_tokens": 60,
                              "temperature": 0, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": [SYSTEM, {"role": "user", "content": QUESTIONS[1]}], "enable_thinking": False,
                              "max_tokens": 12, "temperature": 0.7, "seed": 5, "logprobs": True}),
]


def ask_all(server):
    return [post(server, path, body) for path, body in REQUESTS]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class SameBits(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def serve(self, *flags):
        server = Server("--max-queue", "1000", *flags)
        self.addCleanup(server.stop)
        return server

    def files(self):
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name != "lock")

    def test_with_and_without_cache_alone_and_among_32_others_cold_and_from_disk(self):
        off = self.serve("--prefix-cache", "off")
        replies = ask_all(off)
        expected = [output(reply) for reply in replies]
        self.assertEqual([cached(reply) for reply in replies], [0] * len(REQUESTS))
        self.assertEqual(off.metric("dsv4_cached_prefixes"), 0)
        off.stop()

        flags = ["--kv-disk", self.folder, "--prefix-interval", "64"]
        first = self.serve(*flags)
        replies = ask_all(first)
        self.assertEqual([output(reply) for reply in replies], expected, "cold")
        self.assertEqual(cached(replies[0]), 0)
        replies = ask_all(first)
        self.assertEqual([output(reply) for reply in replies], expected, "warm")
        for reply in replies:
            self.assertEqual(cached(reply), reply["usage"]["prompt_tokens"] - 1)
        # Among 32 other requests, which start and end; some share a prefix.
        others = [lambda i=i: post(first, "/v1/completions", {"prompt": STORY * (i % 5) + "it %d" % i, "max_tokens": 2 + i % 4, "seed": i})
                  for i in range(32)]
        wanted = [lambda request=request: output(post(first, *request)) for request in REQUESTS]
        self.assertEqual(in_parallel(others[:16] + wanted + others[16:])[16:16 + len(wanted)], expected, "among others")
        self.assertEqual(self.files(), [])
        self.assertEqual(first.stop(), 0)
        self.assertGreater(len(self.files()), len(REQUESTS))

        second = self.serve(*flags)
        self.assertEqual(second.metric("dsv4_cached_prefixes", place="disk"), len(self.files()))
        replies = ask_all(second)
        self.assertEqual([output(reply) for reply in replies], expected, "from disk")
        for reply in replies:
            self.assertGreaterEqual(cached(reply), 0.9 * reply["usage"]["prompt_tokens"])
        self.assertGreater(second.metric("dsv4_prefix_hit_total", place="disk"), 2)
        self.assertEqual(second.metric("dsv4_kv_disk_total", event="refused"), 0)
        self.assertEqual(second.stop(), 0)

        # Damaged while the server is down (truncated: found at the start) and while it runs (found when the file is
        # used).
        with open(self.files()[0], "r+b") as file:
            file.truncate(100)
        third = self.serve(*flags)
        self.assertEqual(third.metric("dsv4_kv_disk_total", event="refused"), 1)
        self.assertIn(self.files()[0], third.read_log())
        for path in self.files()[1:]:
            with open(path, "r+b") as file:
                file.seek(-5000, os.SEEK_END)
                byte = file.read(1)
                file.seek(-5000, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
        replies = ask_all(third)
        self.assertEqual([output(reply) for reply in replies], expected, "damaged")
        self.assertEqual(cached(replies[0]), 0)
        self.assertGreater(third.metric("dsv4_kv_disk_total", event="refused"), 4)
        self.assertEqual(third.metric("dsv4_prefix_hit_total", place="disk"), 0)
        self.assertEqual(third.stop(), 0)

        # Files of other settings are not touched.
        fourth = self.serve(*flags, "--kv-dtype", "bf16")
        self.assertEqual(fourth.metric("dsv4_cached_prefixes", place="disk"), 0)
        self.assertGreater(fourth.metric("dsv4_kv_disk_total", event="foreign"), 4)

    def test_what_leaves_memory_comes_back_from_disk(self):
        # Memory for only a few cached prefixes.
        server = self.serve("--kv-disk", self.folder, "--kv-budget", "12000000")
        bodies = [{"prompt": "number %d: " % i + STORY * 9, "max_tokens": 6, "temperature": 0, "logprobs": 1} for i in range(6)]
        before = [post(server, "/v1/completions", body) for body in bodies]
        after = [post(server, "/v1/completions", body) for body in bodies]
        self.assertEqual([output(r) for r in after], [output(r) for r in before])
        for reply in after:
            self.assertGreater(cached(reply), 0.9 * reply["usage"]["prompt_tokens"])
        self.assertGreater(server.metric("dsv4_prefix_evictions_total"), 0)
        self.assertGreater(server.metric("dsv4_kv_disk_total", event="restored"), 0)
        self.assertLessEqual(server.metric("dsv4_kv_bytes", use="kept") + server.metric("dsv4_kv_bytes", use="running"), 12000000)


class Conversations(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.FLAGS = ["--kv-disk", cls.folder]
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        try:
            super().tearDownClass()
        finally:
            shutil.rmtree(cls.folder)

    def turn(self, messages, text, **fields):
        """Asks a question and answers calls. Returns (cached, prompt) tokens of every request."""
        messages.append({"role": "user", "content": text})
        counts = []
        for _ in range(3):
            reply = self.chat(messages, max_tokens=120, **fields)
            counts.append((cached(reply), reply["usage"]["prompt_tokens"]))
            message = reply["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or []:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": %d}' % len(messages)})
            if not message.get("tool_calls"):
                break
        return counts

    def test_two_long_conversations_in_turns(self):
        for fields in [{"tools": [WEATHER_TOOL]}, {"tools": [WEATHER_TOOL], "enable_thinking": False}, {}, {"enable_thinking": False}]:
            conversations = [[{**SYSTEM, "content": SYSTEM["content"] + name}] for name in ("A" + str(fields), "B" + str(fields))]
            found = total = calls = 0
            # Without tools a call that the model begins is text. The server reads it back as ordinary text, not as the
            # special tokens that the model wrote, so such a reply has other tokens in the next prompt.
            questions = [text for text in QUESTIONS if "tools" in fields or "Rome" not in text]
            for number, text in enumerate(questions):
                for messages in conversations:
                    for hit, prompt in self.turn(messages, text, **fields):
                        if number > 0:
                            found += hit
                            total += prompt
            calls = sum(len(m.get("tool_calls") or []) for messages in conversations for m in messages)
            print("%s: %d of %d prompt tokens from the cache from the second turn on (%.1f %%), %d calls"
                  % (fields.get("enable_thinking", "thinking"), found, total, 100 * found / total, calls))
            self.assertGreaterEqual(found, 0.95 * total, fields)
            if "tools" in fields:
                self.assertGreater(calls, 0)

    def test_a_short_conversation_reads_only_what_is_new(self):
        for fields in [{"tools": [WEATHER_TOOL]}, {"enable_thinking": False}]:
            messages, before = [], 0
            for number, text in enumerate(QUESTIONS[:4]):
                messages.append({"role": "user", "content": text})
                reply = self.chat(messages, max_tokens=200, **fields)
                choice = reply["choices"][0]
                if number > 0:
                    self.assertGreaterEqual(cached(reply), 0.95 * before, (fields, number, reply))
                before = reply["usage"]["total_tokens"] - 1
                messages.append(choice["message"])
                for call in choice["message"].get("tool_calls", []):
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": 18}'})

    def test_dropped_reasoning_costs_no_more_than_the_reply(self):
        """Without tools the encoder omits the reasoning: the next turn continues from the end of the last prompt."""
        messages = [SYSTEM, {"role": "user", "content": QUESTIONS[1]}]
        first = self.chat(messages, max_tokens=150)
        messages += [first["choices"][0]["message"], {"role": "user", "content": QUESTIONS[4]}]
        second = self.chat(messages, max_tokens=5)
        self.assertGreaterEqual(cached(second), first["usage"]["prompt_tokens"] - 1)

    def test_several_replies_read_their_prompt_once(self):
        before = self.server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
        reply = self.chat([{"role": "user", "content": "Once " + STORY * 8}], n=4, max_tokens=3, temperature=1, seed=3)
        self.assertEqual(len(reply["choices"]), 4)
        self.assertEqual(cached(reply), 0)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - before, reply["usage"]["prompt_tokens"] + 3)

    def test_a_changed_message_goes_on_from_where_prompts_part(self):
        def ask(text):
            return self.chat([{"role": "system", "content": "Parting. " + STORY * 20}, {"role": "user", "content": text}], max_tokens=2)

        ask("one")
        ask("two")  # makes the cached prefix
        reply = ask("three")
        self.assertGreaterEqual(cached(reply), 0.9 * reply["usage"]["prompt_tokens"])

    def test_a_kv_disk_that_cannot_be_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "--kv-disk"):
            Server("--kv-disk", "/proc/none")


if __name__ == "__main__":
    main()
