#!/usr/bin/env python3
"""Recorded sessions of coding agents: every request is answered, nothing that was read before is read again, and at least 95 % of the
prompt tokens come from the prefix cache.

recordings/ holds what Claude Code 2.1.330 and Codex 0.163.0 sent in 30 turns with tools, failures, parallel calls, pictures, a search
for tools and a compaction (record_agents.py), every text replaced by another of the same length (scrub.py). Here a reply ends after
four tokens, and texts are cut to a third, all alike, which takes a third of the time (DSV4_TEST_REPLAY_PART=1: they are not).

What is read: the first prompt once, then what each turn adds, and behind the compaction what does not belong to the instructions.

- Of a session, replies are known to the server that wrote them. So each recorded reply of Claude Code is handed in by a request that
  continues it, which does not count; without that its tokens are read with the turn behind it.
- Codex asks for its summary without tools. These stand in front of the conversation, so all of that prompt but the instructions is
  new: it is told apart. The replies between are read, too: responses cannot be continued.
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
    """Cached and all tokens of the prompt."""
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
        """The share, in percent, of all and of those of turns."""
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
