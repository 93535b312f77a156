#!/usr/bin/env python3
"""A device that fails while `dsv4 serve` runs: streams end with the device's error, and the server continues or ends,
as its flags say. DSV4_FAIL_DEVICE_AFTER makes any device fail, so a CPU is enough."""

import os
import re
import tempfile
import threading
import time
import unittest

from support import HAS_NANO, SLOWNESS, Server, main, wait_for

PASSES = 60  # passes before each failure; a start takes three
FAILED = "the [CG]PU failed"


def story(words, **more):
    return {"prompt": words, "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0, **more}


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class DeviceFailure(unittest.TestCase):
    def setUp(self):
        os.environ["DSV4_FAIL_DEVICE_AFTER"] = str(PASSES)
        self.addCleanup(os.environ.pop, "DSV4_FAIL_DEVICE_AFTER")

    def start(self, *args):
        server = Server(*args)
        self.addCleanup(self.end, server)
        return server

    @staticmethod
    def end(server):
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()

    def wait_until_ready(self, server):
        wait_for(lambda: server.get("/health/ready").status == 200, "not ready again")

    def test_streams_end_with_the_error_and_the_server_goes_on(self):
        server = self.start()
        replies = [None, None]

        def ask(i):
            replies[i] = server.post("/v1/completions", story(["Once upon", "A list of"][i]))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reply in replies:
            self.assertEqual(reply.status, 200)
            events = reply.events()
            self.assertGreater(len(events), 10)
            last = events[-1][1]
            self.assertIn("error", last)
            self.assertRegex(last["error"]["message"], FAILED)
        self.wait_until_ready(server)
        short = server.post("/v1/completions", story("One", stream=False, max_tokens=8))
        self.assertEqual(short.status, 200, short.body)
        log = server.whole_log()
        self.assertTrue([line for line in log if "device-failed" in line])
        self.assertTrue([line for line in log if "device-restarted" in line])
        failed = [line for line in log if " failed id=" in line and re.search(FAILED, line)]
        self.assertEqual(len(failed), 2, log)
        ended = [line for line in log if " request id=" in line and "finish=error" in line]
        self.assertEqual([line for line in ended if "complete=true" in line or 'incomplete="an error"' not in line], [])
        self.assertEqual(len(ended), 2, log)
        self.assertEqual(server.stop(), 0)

    def test_meanwhile_it_is_not_ready_and_refuses(self):
        server = self.start()
        asked = threading.Thread(target=server.post, args=("/v1/completions", story("Once upon")))
        asked.start()
        statuses, refused, end = set(), set(), time.time() + 60 * SLOWNESS
        while "device-restarted" not in server.read_log() and time.time() < end:
            statuses.add((server.get("/health").json["status"], server.get("/health/live").status))
            refused.add(server.post("/v1/completions", story("A", max_tokens=1, stream=False)).status)
        asked.join()
        self.assertLessEqual(statuses, {("ok", 200), ("device failed", 200)})
        self.assertLessEqual(refused, {200, 500, 503})

    def test_a_reply_in_one_piece_is_an_error(self):
        server = self.start()
        reply = server.post("/v1/completions", story("Once upon", stream=False))
        self.assertEqual(reply.status, 500, reply.body)
        self.assertRegex(reply.json["error"]["message"], FAILED)
        self.wait_until_ready(server)
        self.assertEqual(server.metric("dsv4_device_failures_total"), 1)
        self.assertEqual(server.metric("dsv4_device_restarts_total"), 1)

    def test_the_same_text_follows_after_it(self):
        server = self.start()
        ask = story("The capital of", stream=False, max_tokens=12)
        before = server.post("/v1/completions", ask).json["choices"][0]["text"]
        self.assertEqual(server.post("/v1/completions", story("Once upon", stream=False)).status, 500)
        self.wait_until_ready(server)
        self.assertEqual(server.post("/v1/completions", ask).json["choices"][0]["text"], before)

    def test_what_is_on_disk_survives(self):
        with tempfile.TemporaryDirectory() as folder:
            prompt = " ".join(f"item {i}," for i in range(300))
            ask = story(prompt, stream=False, max_tokens=2)
            os.environ["DSV4_FAIL_DEVICE_AFTER"] = "0"
            server = self.start("--kv-disk", folder)
            self.assertEqual(server.post("/v1/completions", ask).status, 200)
            self.assertEqual(server.stop(), 0)
            os.environ["DSV4_FAIL_DEVICE_AFTER"] = str(PASSES)
            server = self.start("--kv-disk", folder)
            self.assertEqual(server.post("/v1/completions", story("Once upon", stream=False)).status, 500)
            self.wait_until_ready(server)
            reply = server.post("/v1/completions", ask)
            self.assertEqual(reply.status, 200)
            self.assertGreater(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"], 100)

    def test_the_server_ends_for_its_supervisor(self):
        server = self.start("--on-device-failure", "exit")
        reply = server.post("/v1/completions", story("Once upon"))
        self.assertRegex(reply.events()[-1][1]["error"]["message"], FAILED)
        self.assertEqual(server.process.wait(60 * SLOWNESS), 1)
        self.assertRegex(server.read_log(), r"dsv4: error: ((rank|GPU) [01]( \(after [^)]*\))?: )?" + FAILED)


if __name__ == "__main__":
    main()
