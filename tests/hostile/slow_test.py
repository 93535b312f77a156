#!/usr/bin/env python3
"""Clients that send, read or leave slowly, and a log whose reader does not read."""

import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from campaign import BINARY, HAS_NANO, LONG, SLOWNESS, HostileTestCase, Server, main, send_all, status_of, wait_for

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
CHAT = POST.replace(b"/v1/completions", b"/v1/chat/completions")


class Slow(HostileTestCase):
    FLAGS = ["--header-timeout", "2", "--body-timeout", "2", "--write-timeout", "3", "--min-rate", "8KiB", "--max-connections", "40",
             "--max-concurrent", "4", "--max-queue", "8"]

    def drip(self, head, pieces, seconds=60):
        """Sends one piece every 100 ms until the server answers or closes the connection. Returns the answer."""
        begin = time.time()
        with self.server.socket() as sock:
            send_all(sock, head)
            sock.settimeout(0.1)
            while time.time() - begin < seconds * SLOWNESS:
                if not send_all(sock, pieces):
                    return None
                try:
                    return status_of(sock.recv(4096))
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    return None
        self.fail("the server still waits after %d s" % seconds)

    def test_drips(self):
        for head, piece in [(b"", b"G"), (b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (POST % 1000000, b"x" * 100),
                            (b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n")]:
            with self.subTest(head=head):
                self.assertIn(self.drip(head, piece), [400, 408, None])

    def test_a_refusal_ends_its_connection_in_time(self):
        for data in [b"GET /" + b"x" * 40000, POST % (1 << 40), b"POST /nowhere HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"]:
            told = lambda: sum(" request " in line for line in self.server.whole_log())  # noqa: E731
            before = told()
            with self.server.socket() as sock:
                send_all(sock, data)
                wait_for(lambda: not send_all(sock, b"GET /x HTTP/9.9\r\n\r\n"), "the server still listens", 60)
            self.assertLessEqual(told() - before, 1, self.server.read_log())

    def test_who_connects_and_leaves(self):
        for _ in range(300 * LONG):
            self.server.socket().close()
        for cut in range(0, 100, 7):
            with self.server.socket() as sock:
                send_all(sock, (POST % 30 + b'{"prompt": "a", "max_tokens": 5}')[:cut])
        wait_for(lambda: self.server.get("/v1/models").status == 200, "those who have left keep their places")
        self.server.wait_until_idle()


class Places(HostileTestCase):
    FLAGS = ["--max-connections", "40"]

    def test_health_answers_beside_drips_on_every_place(self):
        socks = [self.server.socket() for _ in range(40)]
        try:
            for sock in socks:
                send_all(sock, b"POST /v1/completions HTTP/1.1\r\nContent-Le")
            for path in ["/health", "/health/live", "/health/ready"]:
                self.assertEqual(self.server.get(path).status, 200)
            self.assertEqual(self.server.get("/v1/models").status, 503)
        finally:
            for sock in socks:
                sock.close()
        wait_for(lambda: self.server.get("/v1/models").status == 200, "those who have left keep their places")


class Readers(HostileTestCase):
    """Readers of streams at 1.5 kB/s, one per sequence of the batch."""

    FLAGS = ["--write-timeout", "3", "--min-rate", "8KiB", "--max-concurrent", "8", "--max-gap", "0"]
    COUNT = 8

    def slow_reader(self):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(120 * SLOWNESS)
        sock.connect(("127.0.0.1", self.server.port))
        # Log-probabilities make about 2 kB per token, so the sockets are full soon.
        body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 100000, "ignore_eos": True,
                           "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
        send_all(sock, CHAT % len(body) + body)
        return sock

    def test_they_lose_their_places(self):
        socks = [self.slow_reader() for _ in range(self.COUNT)]
        stop = threading.Event()

        def read(sock):
            try:
                while not stop.wait(0.1) and sock.recv(150):
                    pass
            except OSError:
                pass

        threads = [threading.Thread(target=read, args=(sock,)) for sock in socks]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: self.server.metric("vllm:num_requests_running") == self.COUNT or self.server.lines("slow reader"))
            self.assertEqual(self.honest(), self.answer)  # runs only after one of them has lost its place
            self.server.wait_until_idle()
        finally:
            stop.set()
            for sock in socks:  # one with a full window may get the rest or the end minutes later
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            for thread in threads:
                thread.join()
            for sock in socks:
                sock.close()
        self.assertEqual(len([line for line in self.server.whole_log() if "slow reader" in line]), self.COUNT)


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class Log(unittest.TestCase):
    def test_a_log_that_nobody_reads_stops_nothing(self):
        read, write = os.pipe()
        fcntl.fcntl(write, 1031, 4096)  # F_SETPIPE_SZ
        process = subprocess.Popen([BINARY, "serve", "--port", "0", "--threads", "1", "--kv-budget", "32MiB"], stdin=subprocess.DEVNULL,
                                   stderr=write)
        os.close(write)
        try:
            log = b""
            while b"listening" not in log:
                log += os.read(read, 4096)
            port = int(re.search(rb"127\.0\.0\.1:(\d+)", log)[1])
            for number in range(400 * LONG):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120 * SLOWNESS)
                connection.request("GET", "/v1/models/%d%s" % (number, "x" * 150))
                self.assertEqual(connection.getresponse().status, 404)
                connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(120 * SLOWNESS), 0)
        finally:
            process.kill()
            process.wait()
            os.close(read)


@unittest.skipUnless(HAS_NANO, "the nano model is not in models/nano")
class End(unittest.TestCase):
    def test_a_second_signal_ends_the_process_whatever_runs(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            server = Server("--drain-timeout", "1000", "--kv-budget", "32MiB")
            body = json.dumps({"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True}).encode()
            with server.socket() as sock:
                send_all(sock, POST % len(body) + body)
                sock.recv(10)
                server.process.send_signal(number)
                server.wait_until_draining()  # of two pending signals a process sees only one
                self.assertIsNone(server.process.poll())
                self.assertEqual(server.stop(number), 0)


if __name__ == "__main__":
    main()
