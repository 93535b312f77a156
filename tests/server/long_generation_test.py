#!/usr/bin/env python3
"""Long generation by many clients at once, with drafts: each reply is the reply that its request gets alone.

    long_generation_test.py BINARY [--full]

Two loads that other engines have failed: conversations of many turns with 42 tools, and an echo of 291 tokens. --full
repeats the echo 200 times with each kind of drafts, and has twelve conversations of twelve turns; otherwise a part of
that runs. DSV4_TEST_SERVE gives flags for every server. On a GPU add --prompt-inputs two, or --batch-invariant:
otherwise a prompt has other bits if a part of it comes from the prefix cache.
"""

import json
import queue
import random
import sys
import threading
import unittest

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")

from support import HAS_NANO, Server, main

AT_ONCE = 12
ECHOES, ECHO_TOKENS, ECHO_TEXTS = 200 if FULL else 24, 291, 2
CONVERSATIONS, TURNS, TOOLS = (12, 12, 42) if FULL else (4, 5, 42)
DRAFTS = ["mtp", "dspark", "lookup"] if FULL else ["mtp", "lookup"]
WORDS = "king days land house hand word city water people name son day man fire stone river gold".split()


def tool(i):
    fields = {word: {"type": "string", "description": "The %s of case %d." % (word, i)} for word in WORDS[i % 5:i % 5 + 3]}
    return {"type": "function", "function": {"name": "tool_%d" % i, "description": "Returns what the %s has." % WORDS[i % len(WORDS)],
                                             "parameters": {"type": "object", "properties": fields, "required": list(fields)[:1]}}}


def turn_of(number, turn, r):
    """The messages of a turn before the model speaks: a question, often a call and its result."""
    text = lambda count: " ".join(r.choice(WORDS) for _ in range(count))
    messages = [{"role": "user", "content": "%d.%d: describe the %s" % (number, turn, text(r.choice([4, 12, 40])))}]
    if turn % 2:
        call = "call_%d_%d" % (number, turn)
        name = "tool_%d" % r.randrange(TOOLS)
        messages += [{"role": "assistant", "content": "", "tool_calls": [{"id": call, "type": "function", "function": {
                         "name": name, "arguments": json.dumps({r.choice(WORDS): text(3)})}}]},
                     {"role": "tool", "tool_call_id": call, "content": text(r.choice([5, 60]))}]
    return messages


def answer(server, body):
    """The reply to a completion."""
    reply = server.post("/v1/completions", body)
    if reply.status != 200:
        raise AssertionError("%d %s" % (reply.status, reply.body[:500]))
    choice = reply.json["choices"][0]
    return {"text": choice["text"], "reason": choice["finish_reason"], "tokens": reply.json["usage"]["completion_tokens"]}


def work_through(jobs, work):
    """Calls work(job) for all jobs, from AT_ONCE threads. Raises the first exception."""
    waiting, faults = queue.Queue(), []
    for job in jobs:
        waiting.put(job)

    def run():
        while not faults:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(job)
            except Exception as error:  # raised again below
                faults.append(error)

    threads = [threading.Thread(target=run) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class LongGeneration(unittest.TestCase):
    def serve(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server

    def compare(self, what, pairs):
        """pairs: (name, reply alone, reply among others)."""
        differ = [(name, alone, other) for name, alone, other in pairs if alone != other]
        tokens = sum(alone["tokens"] for _, alone, _ in pairs)
        print("%s: %d of %d replies differ (%d output tokens)" % (what, len(differ), len(pairs), tokens), file=sys.stderr, flush=True)
        self.assertFalse(differ, "%s, alone and among others" % (differ[:1],))

    def record(self):
        """The requests of all conversations with the replies that they get alone."""
        server, tools = self.serve("--max-concurrent", "1"), [tool(i) for i in range(TOOLS)]
        conversations = []
        for number in range(CONVERSATIONS):
            r, messages, turns = random.Random(number), [{"role": "system", "content": "You are clerk %d." % (number % 3)}], []
            for turn in range(TURNS):
                messages = messages + turn_of(number, turn, r)
                chat = {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": r.choice([8, 24, 60]),
                        "enable_thinking": False, "return_token_ids": True}
                reply = server.post("/v1/chat/completions", chat).json
                # By its ids: the ids of a chat's text depend on whether its last reply is kept already.
                body = {"prompt": reply["prompt_token_ids"], "temperature": 0, "max_tokens": chat["max_tokens"], "speculate": False}
                turns.append((body, answer(server, body)))
                said = reply["choices"][0]["message"]
                messages = messages + [said]
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": "none"} for call in said.get("tool_calls") or []]
            conversations.append(turns)
        return conversations

    def test_many_turns_with_42_tools(self):
        conversations = self.record()
        server = self.serve("--speculate", "mtp", "--draft-threshold", "0")
        pairs = []

        def replay(number):
            for turn, (body, alone) in enumerate(conversations[number]):
                reply = answer(server, {**body, "speculate": True})
                pairs.append(("conversation %d, turn %d" % (number, turn), alone, reply))

        # each conversation several times at once: copies share cached prefixes, and take them from each other
        copies = AT_ONCE // CONVERSATIONS + 1
        work_through([n for n in range(CONVERSATIONS)] * copies, replay)
        self.assertEqual(len(pairs), CONVERSATIONS * TURNS * copies)
        self.compare("turns with 42 tools, prompts of %d tokens" % (server.metric("vllm:prompt_tokens_total") / len(pairs)), pairs)
        self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
        self.assertGreater(server.metric("vllm:spec_decode_num_draft_tokens_total"), 0)

    def echoes(self, server):
        """Requests with text of ECHO_TOKENS tokens, for the model to repeat, and the replies that they get alone."""
        found = []
        for number in range(ECHO_TEXTS):
            r = random.Random(100 + number)
            text = " ".join(r.choice(WORDS) for _ in range(ECHO_TOKENS))
            ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"][:ECHO_TOKENS]
            self.assertEqual(len(ids), ECHO_TOKENS)
            body = {"prompt": ids + ids[:40], "max_tokens": ECHO_TOKENS, "temperature": 0, "ignore_eos": True}
            found.append((body, answer(server, {**body, "speculate": False})))
            self.assertEqual(found[-1][1]["tokens"], ECHO_TOKENS)
        return found

    def test_an_echo_of_291_tokens(self):
        alone = self.echoes(self.serve("--max-concurrent", "1"))
        for kind in DRAFTS:
            server, pairs = self.serve("--speculate", kind), []

            def ask(number):
                body, reply = alone[number % ECHO_TEXTS]
                pairs.append(("echo %d" % number, reply, answer(server, body)))

            work_through(range(ECHOES), ask)
            self.assertEqual(len(pairs), ECHOES)
            self.compare("echo of %d tokens, drafts %s" % (ECHO_TOKENS, kind), pairs)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0, kind)


if __name__ == "__main__":
    main()
