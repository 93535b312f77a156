#!/usr/bin/env python3
"""Recorded sessions of coding agents: every request is answered, no prompt tokens are processed twice, and at least 95
% of the prompt tokens come from the prefix cache.

recordings/ has the requests of Claude Code 2.1.330 and Codex 0.163.0 in 30 turns with tools, failures, parallel calls,
pictures, a search for tools and a compaction (record_agents.py). Every text is replaced by another one of the same
length (scrub.py). In this test a reply ends after four tokens, and all texts are cut to a third, which takes a third of
the time (DSV4_TEST_REPLAY_PART=1: not cut).

Tokens to process: the first prompt once, then the tokens that each turn adds, and after the compaction everything
except the instructions.

- A server caches the replies that it wrote itself. So for each recorded reply of Claude Code the test sends a request
  that continues it. These requests do not count. Without them, the tokens of the reply are processed with the next
  turn.
- Codex requests its summary without tools. Tools come before the conversation, so all of that prompt except the
  instructions is new; the test reports it separately. The replies between are also processed: responses cannot be
  continued.
"""

import json
import lzma
import os
from pathlib import Path

from scrub import map_texts
from support import ServerTestCase, main

RECORDINGS = Path(__file__).resolve().parent / "recordings"
PART = int(os.environ.get("DSV4_TEST_REPLAY_PART", "3"))
TURNS = 30


def shorter(text):
    return text[:-(-len(text) // PART)]


def usage_of(reply):
    """Cached tokens and all tokens of the prompt."""
    events = [data for _, data in reply.events()]
    if events[-1]["type"] == "message_stop":
        (usage,) = [e["usage"] for e in events if e["type"] == "message_delta"]
        return usage["cache_read_input_tokens"], usage["cache_read_input_tokens"] + usage["input_tokens"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
    usage = events[-1]["response"]["usage"]
    return usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]


class Replay(ServerTestCase):
    def requests(self, name, limit):
        for request in json.loads(lzma.decompress((RECORDINGS / (name + ".json.xz")).read_bytes())):
            request["body"] = {**map_texts(request["body"], shorter), limit: 4}
            yield request

    def send(self, request, **fields):
        reply = self.server.request("POST", request["path"], {**request["body"], **fields}, request["headers"])
        self.assertEqual(reply.status, 200, reply.body[:300])
        return usage_of(reply)

    def told(self, name, figures):
        """The share in percent: of all requests, and of the turns only."""
        cached, prompt = (sum(column) for column in zip(*figures))
        print("%s: %d requests, %.1f %% of %d prompt tokens were cached" % (name, len(figures), 100 * cached / prompt, prompt))
        return 100 * cached / prompt

    def test_claude_code(self):
        figures, known, replies = [], 0, 0
        for request in self.requests("claude_code", "max_tokens"):
            messages = request["body"]["messages"]
            at = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=None)
            if at is not None:
                cached, prompt = self.send(request, messages=messages[:at + 1], max_tokens=1)
                replies, known = replies + max(prompt - known, 0), prompt
            figures.append(self.send(request))
            compacted = len(figures) > 1 and len(messages) < 6
            if len(figures) > 1 and not compacted:
                self.assertGreaterEqual(figures[-1][0], known - 1, "request %d reads again what is known" % len(figures))
            known = figures[-1][1]
        self.assertEqual(len(figures), TURNS + 1)
        self.assertGreaterEqual(self.told("Claude Code", figures), 95)

    def test_codex(self):
        figures, summary, known = [], [], 0
        for request in self.requests("codex", "max_output_tokens"):
            if not request["body"]["tools"]:
                summary.append(self.send(request))
                known = 0
                continue
            figures.append(self.send(request))
            self.assertGreaterEqual(figures[-1][0], known - 1, "turn %d reads again what is known" % len(figures))
            known = figures[-1][1]
        self.assertEqual((len(figures), len(summary)), (TURNS, 1))
        self.told("Codex, with the request for a summary", figures + summary)
        self.assertGreaterEqual(self.told("Codex", figures), 95)


if __name__ == "__main__":
    main()
