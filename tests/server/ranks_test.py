#!/usr/bin/env python3
"""`dsv4 serve` on two ranks: many streams at once, comparison of the ranks after every step, ranks that fail, are late
or never come. With --rank-invariant, replies, log-probabilities and KV files equal the ones of one rank."""

import http.client
import os
import re
import signal
import tempfile
import threading
import time
import unittest

from support import HAS_NANO, SLOWNESS, Server, main, wait_for

RANKS = os.environ.get("DSV4_TEST_RANKS", "cpu*2")  # or two GPUs, or one twice
ONE = re.split("[:*]", RANKS)[0]

LONG = " ".join(f"item {i}," for i in range(120))
ASKED = [{"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "seed": seed, "temperature": 0.8 if seed % 2 else 0, "logprobs": 3}
         for seed, prompt in enumerate(["Once upon", "A list of", LONG, LONG + " and", "The capital of", "x"])]


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
@unittest.skipIf("--device" in os.environ.get("DSV4_TEST_SERVE", ""), "the tests' flags name a device already")
class Ranks(unittest.TestCase):
    def start(self, *args):
        server = Server("--kv-budget", "200MiB", *args)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def start_with(self, fault, *args):
        os.environ["DSV4_FAIL_DEVICE_AFTER"] = fault
        self.addCleanup(os.environ.pop, "DSV4_FAIL_DEVICE_AFTER")
        return self.start("--device", RANKS, *args)

    def ask_until_it_stands(self, server, replies):
        """Starts a stream and waits until no token has come for a while. Returns the thread that reads it."""
        story = {"prompt": "Once upon", "max_tokens": 200, "ignore_eos": True, "stream": True}

        def ask():
            try:
                replies.append(server.post("/v1/completions", story))
            except (OSError, http.client.HTTPException) as error:  # the server has ended
                replies.append(error)

        def stands():
            made = server.metric("vllm:generation_tokens_total")
            time.sleep(0.4 * SLOWNESS)
            return made > 10 and server.metric("vllm:generation_tokens_total") == made

        asked = threading.Thread(target=ask)
        asked.start()
        wait_for(stands)
        return asked

    def ask_all(self, server):
        """Sends all requests at once."""
        replies = [None] * len(ASKED)

        def ask(i):
            replies[i] = server.post("/v1/completions", ASKED[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(ASKED))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reply in replies:
            self.assertEqual(reply.status, 200, reply.body)
        return [(r.json["choices"][0]["text"], r.json["choices"][0]["logprobs"]["token_logprobs"]) for r in replies]

    def test_answers_are_one_ranks_where_that_is_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            answers = []
            for device in (RANKS, ONE):
                # batch-invariant: a computed row has the same bits as one from a file
                server = self.start("--device", device, "--rank-invariant", "--batch-invariant", "--kv-disk", folder)
                if device == ONE:  # continues from what two ranks computed and wrote
                    usage = server.post("/v1/completions", ASKED[2]).json["usage"]
                    self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 100)
                answers.append(self.ask_all(server))
                self.assertEqual(server.stop(), 0)
            self.assertEqual(answers[0], answers[1])

    def test_ranks_agree_after_every_step(self):
        server = self.start("--device", RANKS, "--check-ranks")
        self.ask_all(server)
        self.ask_all(server)  # from the prefix cache
        self.assertEqual(server.get("/health").status, 200)
        self.assertNotIn("differ", server.read_log())
        self.assertEqual(server.stop(), 0)

    def test_a_rank_that_is_late_keeps_nobody_from_ending(self):
        """SIGTERM while one rank waits for another: the stream gets an error, and the process ends once the late rank
        has arrived or was abandoned (GPUs abandon it after a second)."""
        late = 4
        server = self.start_with("40:1:%d" % late, "--drain-timeout", "1", "--collective-timeout", "1", "--on-device-failure", "exit")
        replies = []
        asked = self.ask_until_it_stands(server, replies)
        status = server.stop(timeout=late + 60)
        asked.join()
        last = replies[0].events()[-1][1]["error"]["message"]
        if RANKS.startswith("cpu"):
            self.assertEqual(status, 0)
            self.assertIn("shutting down", last)
        else:
            self.assertRegex(last, "shutting down|sent nothing to")

    def test_a_rank_that_never_comes_keeps_the_process_for_seconds_only(self):
        server = self.start_with("40:1:3600", "--drain-timeout", "1", "--collective-timeout", "1", "--on-device-failure", "exit")
        replies = []
        asked = self.ask_until_it_stands(server, replies)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.lines(" stopping ", "drain timeout"))
        reply = server.get("/health")  # is still answered
        self.assertEqual((reply.status, reply.json["status"], reply.json["live"]), (503, "draining", True))
        self.assertEqual(server.process.wait(120 * SLOWNESS), 1)
        asked.join()
        self.assertEqual(len(server.lines(" stuck what=\"a step of the engine\" seconds=")), 1, server.read_log())

    def test_one_that_fails_is_named_and_all_are_opened_anew(self):
        server = self.start_with("60:1")
        story = {"prompt": "Once upon", "max_tokens": 200, "ignore_eos": True}
        reply = server.post("/v1/completions", story)
        self.assertEqual(reply.status, 500, reply.body)
        named = r"rank 1 \(after [a-z0-9, ]+\)" if RANKS.startswith("cpu") else r"(rank|GPU) 1( \(after [a-z0-9, ]+\))?"
        self.assertRegex(reply.json["error"]["message"], named + ": the [CG]PU failed")
        wait_for(lambda: server.get("/health/ready").status == 200, "not ready again")
        self.assertEqual(server.post("/v1/completions", dict(story, max_tokens=8)).status, 200)
        self.assertEqual([server.metric("dsv4_device_failures_total", rank=rank) for rank in ["0", "1", "unknown"]], [0, 1, 0])
        self.assertEqual(server.metric("dsv4_device_restarts_total"), 1)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
