#!/usr/bin/env python3
"""The real Claude Code and Codex, headless, in a session of two turns with a live server. The model's text does not
matter: no request may be refused, the process must succeed, and the second turn must continue from the first. The
clients are fetched once from PyPI (170 MB); without them and without network the test is skipped."""

import agent_clients

agent_clients.enter()

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import HAS_NANO, SLOWNESS, Server, main

SECONDS = 900  # a first prompt has 18,000 tokens of instructions and tools


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class LiveAgents(unittest.TestCase):
    def session(self, name, again):
        """`again`: turns a command line into one that continues. Returns the prompt and cached tokens of each
        request."""
        server = Server("--ctx", "65536")  # the model's text is random and may be long
        self.addCleanup(server.stop)
        with tempfile.TemporaryDirectory() as scratch:
            work, home = Path(scratch) / "work", Path(scratch) / "home"
            work.mkdir()
            home.mkdir()
            (work / "notes.txt").write_text("The ferry leaves at nine.\n")
            command, environment = agent_clients.command(name, "http://127.0.0.1:%d" % server.port, home, "Say hello.", turns=5)
            for line in (command, again(command)):
                done = subprocess.run(line, env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      timeout=SECONDS * SLOWNESS)
                self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        server.wait_until_idle()
        log = "\n".join(server.whole_log())
        requests = re.findall(r"method=POST path=/v1/(?:messages|responses) status=(\d+).* prompt_tokens=(\d+) cached_tokens=(\d+)", log)
        self.assertGreaterEqual(len(requests), 2, log[-3000:])
        self.assertEqual({status for status, _, _ in requests}, {"200"})
        self.assertNotRegex(log, r"method=POST path=\S+ status=[45]")
        figures = [(int(prompt), int(cached)) for _, prompt, cached in requests]
        print(name, figures)
        self.assertGreater(figures[-1][1], 0.9 * figures[0][0])

    def test_claude_code(self):
        self.session("claude_code", lambda command: [command[0], "--continue", *command[1:]])

    def test_codex(self):
        self.session("codex", lambda command: [*command[:2], "resume", "--last", *command[2:]])


if __name__ == "__main__":
    main()
