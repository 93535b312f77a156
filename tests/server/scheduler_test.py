#!/usr/bin/env python3
"""Requests that run together: same bits, limits, cancelling, memory."""

import json
import os
import random
import re
import socket
import threading
import time

from support import Server, ServerTestCase, in_parallel, main, wait_for

STORY = "And it came to pass in the days of the king that "


def stream_body(**fields):
    return json.dumps({"prompt": "a", "temperature": 0, "stream": True, "ignore_eos": True, **fields}).encode()


class Together(ServerTestCase):
    FLAGS = ["--max-gap", "100", "--max-queue", "1000"]

    def open_stream(self, body, path="/v1/completions"):
        sock = self.server.socket()
        sock.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        data = b""
        while b"data: " not in data:
            piece = sock.recv(4096)
            self.assertTrue(piece, data)
            data += piece
        return sock

    def test_a_request_gives_the_same_bits_alone_and_among_32_others(self):
        random.seed(1)
        bodies = []
        for i in range(33):
            text = " ".join(random.choice(STORY.split()) for _ in range(random.choice([1, 5, 60, 300])))
            bodies.append({"prompt": text, "max_tokens": random.choice([3, 17, 24]), "temperature": random.choice([0, 0.8]),
                           "seed": i, "logprobs": 2, "top_p": 0.95, "presence_penalty": 0.3 * (i % 2)})

        def ask(body):
            reply = self.server.post("/v1/completions", body)
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json["choices"]

        alone = [ask(body) for body in bodies[:6]]
        together = in_parallel([lambda body=body: ask(body) for body in bodies])
        self.assertEqual(together[:6], alone)
        self.assertEqual(in_parallel([lambda body=body: ask(body) for body in reversed(bodies)])[::-1], together)

    def test_a_stream_goes_on_while_a_long_prompt_is_read(self):
        sock = self.open_stream(stream_body(max_tokens=100000))
        try:
            long_prompt = STORY * 2500 if "cuda" in os.environ.get("DSV4_TEST_SERVE", "") else (STORY * 250)[:12000]
            made = lambda: self.server.metric("vllm:generation_tokens_total")  # noqa: E731
            begin, before = time.time(), made()
            done = []
            thread = threading.Thread(target=lambda: done.append(self.complete(long_prompt, max_tokens=1)))
            thread.start()
            while thread.is_alive():
                sock.recv(65536)
            tokens, seconds = made() - before, time.time() - begin
            thread.join()
            self.assertTrue(done)
            # If prompts were not processed in chunks, the stream would get one token in the whole time of the prompt.
            self.assertGreater(tokens, 5)
            self.assertLess(seconds / tokens, 1)
        finally:
            sock.close()
        self.server.wait_until_idle()

    def test_clients_that_leave_are_cancelled(self):
        aborted = self.server.metric("vllm:request_success_total", finished_reason="abort")
        socks = [self.open_stream(stream_body(max_tokens=1000000)) for _ in range(4)]
        for sock in socks[:2]:
            sock.close()
        for sock in socks[2:]:  # a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            sock.close()
        self.server.wait_until_idle()
        self.assertEqual(self.server.metric("vllm:request_success_total", finished_reason="abort"), aborted + 4)
        # Also while a prompt is processed and nothing is written, and while a client waits for a whole reply.
        for body in [stream_body(prompt=STORY * 3000), json.dumps({"prompt": "a", "max_tokens": 1000000, "ignore_eos": True}).encode()]:
            with self.server.socket() as sock:
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                time.sleep(0.5)
            self.server.wait_until_idle()
        self.assertEqual(self.server.metric("dsv4_kv_bytes", use="running"), 0)

    def test_a_storm_leaves_nothing_behind(self):
        def one(i):
            with self.server.socket() as sock:
                body = stream_body(max_tokens=100000, prompt=STORY * (i % 7))
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                if i % 3:
                    sock.recv(100)
                time.sleep(0.01 * (i % 5))

        for start in range(0, 60, 20):
            in_parallel([lambda i=i: one(i) for i in range(start, start + 20)])
        self.server.wait_until_idle()
        self.assertEqual(self.server.metric("dsv4_kv_bytes", use="running"), 0)
        self.assertEqual(self.complete(STORY, max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_usage_and_counters_agree(self):
        self.server.wait_until_idle()
        before = self.server.metric("vllm:generation_tokens_total")
        prompts = self.server.metric("vllm:prompt_tokens_total")
        usage = [self.chat(max_tokens=n)["usage"] for n in (5, 9, 100)]
        self.assertEqual(self.server.metric("vllm:generation_tokens_total") - before, sum(u["completion_tokens"] for u in usage))
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total") - prompts,
                         sum(u["prompt_tokens"] for u in usage))


class SeededRequests(ServerTestCase):
    """With default flags, except the cache: on a GPU, the rows that come from the cache may change a request's last
    bits."""

    FLAGS = ["--prefix-cache", "off", "--max-queue", "1000"]

    def test_each_gives_the_same_text_and_log_probabilities_alone_and_together(self):
        on_gpu = "cuda" in os.environ.get("DSV4_TEST_SERVE", "")
        random.seed(2)
        words = STORY.split() + ["river", "stone", "seven", "gold", "night"]
        # Prompts of each kind that a GPU distinguishes: up to 128 tokens, up to 1,024, more.
        lengths = ([3, 30, 90, 400, 700, 1500] * 8 if on_gpu else [3, 30, 90, 300, 700, 50] * 2)
        bodies = [{"prompt": " ".join(random.choice(words) for _ in range(n)), "max_tokens": 24, "temperature": 0.8, "seed": i, "logprobs": 3}
                  for i, n in enumerate(lengths)]

        def ask(body):
            reply = self.server.post("/v1/completions", body)
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json["choices"]

        alone = [ask(body) for body in bodies]
        for _ in range(2):
            together = in_parallel([lambda body=body: ask(body) for body in bodies])
            self.assertEqual([i for i in range(len(bodies)) if together[i] != alone[i]], [])


ENDLESS = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True}


class Queue(ServerTestCase):
    FLAGS = ["--max-concurrent", "1", "--max-queue", "2"]

    def test_a_full_queue_is_a_429(self):
        connections = []
        for running, waiting in [(1, 0), (1, 1), (1, 2)]:
            connections.append(self.server.connect())
            connections[-1].request("POST", "/v1/completions", json.dumps(ENDLESS))
            wait_for(lambda: self.server.metric("vllm:num_requests_running") == running)
            wait_for(lambda: self.server.metric("vllm:num_requests_waiting") == waiting)
        for reply in in_parallel([lambda: self.server.post("/v1/completions", ENDLESS) for _ in range(6)]):
            self.assertEqual((reply.status, reply.json["error"]["type"]), (429, "rate_limit_error"))
            self.assertGreater(int(reply.headers["retry-after"]), 0)
        for connection in connections:
            connection.close()
        self.server.wait_until_idle()
        self.assertEqual(self.complete("a", max_tokens=1)["usage"]["completion_tokens"], 1)


class Limits(ServerTestCase):
    FLAGS = ["--max-concurrent", "1", "--request-timeout", "2", "--max-prompt", "50"]

    def test_what_runs_and_what_waits_runs_out_of_time(self):
        for reply in in_parallel([lambda: self.server.post("/v1/completions", ENDLESS) for _ in range(3)]):
            self.assertEqual(reply.status, 200)
            self.assertEqual(reply.events()[-1][1]["error"]["type"], "timeout_error")
        reply = self.server.post("/v1/completions", {**ENDLESS, "stream": False})
        self.refused(reply, 504, "time")
        self.assertEqual(reply.headers["x-should-retry"], "false")

    def test_long_prompts(self):
        error = self.refused(self.server.post("/v1/completions", {"prompt": list(range(2, 60))}), 400, "58", "50")
        self.assertEqual(error["code"], "context_length_exceeded")


PAGE = 256  # tokens


def kv_of_three():
    """The memory of three sequences of one page each; a second page of any of them does not fit. A server reports the
    memory that a sequence needs on all ranks together when it refuses one."""
    server = Server("--kv-budget", 16 << 20)

    def kv_of(tokens):
        reply = server.post("/v1/completions", {"prompt": [5] * (tokens - 1)})
        return int(re.search(r"needs ([0-9]+) bytes of KV", reply.json["error"]["message"])[1])

    few, many = kv_of(200000), kv_of(300000)
    server.stop()
    per_token = (many - few) / 100000
    return int(3 * (few - 200000 * per_token) + 3.5 * PAGE * per_token)


class Memory(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        cls.budget = kv_of_three()
        cls.FLAGS = ["--kv-budget", cls.budget, "--max-gap", "0"]  # all run at once, however slow a step is
        super().setUpClass()

    def test_sequences_give_way_and_come_back_with_the_same_bits(self):
        bodies = [{"prompt": STORY * (1 + i), "max_tokens": 260, "seed": i, "temperature": 0.7, "ignore_eos": True, "logprobs": 0}
                  for i in range(4)]
        alone = [self.complete(**body)["choices"] for body in bodies]
        def all_at_once():
            self.assertEqual(in_parallel([lambda body=body: self.complete(**body)["choices"] for body in bodies]), alone)
            return self.server.metric("vllm:num_preemptions_total")

        wait_for(all_at_once, "none gave way")  # if one ends before the next is sent, none is preempted
        self.assertLessEqual(self.server.metric("dsv4_kv_bytes", use="kept"), self.budget)

    def test_a_prompt_that_never_fits(self):
        self.refused(self.server.post("/v1/completions", {"prompt": [5] * 200000}), 400, "--kv-budget")


class SlowReader(ServerTestCase):
    def test_a_slow_reader_pauses_its_own_stream_only(self):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self.server.port))
        # Large chunks: log-probabilities of a hundred tokens each.
        body = stream_body(max_tokens=100000, logprobs=100)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        end = time.time() + 300
        last = -1
        while time.time() < end:  # until the server makes no more tokens for it
            time.sleep(0.7)
            now = self.server.metric("vllm:generation_tokens_total")
            if now == last and now > 50:
                break
            last = now
        self.assertEqual(now, last)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 1)
        self.assertEqual(self.complete("a", max_tokens=3)["usage"]["completion_tokens"], 3)
        data = 0
        while data < 3 << 20:  # the client reads again and gets more
            data += len(sock.recv(65536))
        self.assertGreater(self.server.metric("vllm:generation_tokens_total"), now)
        sock.close()
        self.server.wait_until_idle()


if __name__ == "__main__":
    main()
