#!/usr/bin/env python3
"""Bytes on connections: framing, lengths, and bodies that are not requests. The server runs under `ulimit -v`."""

import json
import socket
import threading
import time

from campaign import LONG, MIB, SANITIZED, SLOWNESS, HostileTestCase, best_of, cases, main, read_all, send_all, status_of

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
          "/tokenize", "/detokenize"]


class Framing(HostileTestCase):
    FLAGS = ["--header-timeout", "2", "--body-timeout", "2"]
    LIMIT_MIB = 2048

    def exchange(self, data):
        with self.server.socket() as sock:
            send_all(sock, data)
            return read_all(sock)

    def test_what_never_ends_is_cut(self):
        flood = b"x" * MIB
        for begin in [CHUNKED + b"1;", CHUNKED + b"1;a=\"", CHUNKED + b"0\r\n", CHUNKED + b"0\r\nx: ", CHUNKED + b"0;",
                      CHUNKED + b"00000000", b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\n", b""]:
            with self.subTest(begin=begin), self.server.socket() as sock:
                send_all(sock, begin)
                end = time.time() + 60 * SLOWNESS
                while time.time() < end and send_all(sock, flood):
                    pass  # after a refusal the server discards input for two seconds
                self.assertLess(time.time(), end)

    def test_lines_that_never_end_are_counted(self):
        for line in [b"1;" + b"x" * 200 + b"\r\na\r\n", b"1\r\na\r\n" * 10]:
            with self.subTest(line=line), self.server.socket() as sock:
                send_all(sock, CHUNKED)
                end = time.time() + 60 * SLOWNESS
                while time.time() < end and send_all(sock, line * 1000):
                    pass
                self.assertLess(time.time(), end)
        reply = self.exchange(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n")
        self.assertIn(status_of(reply), [431, None])

    def test_lengths_that_lie(self):
        for head in [b"Content-Length: 18446744073709551615", b"Content-Length: 99999999999999999999999", b"Content-Length: -1",
                     b"Content-Length: 4294967297", b"Content-Length: 5, 5", b"Content-Length: 1e3", b"Content-Length:",
                     b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked\r\n"
                     b"Transfer-Encoding: identity", b"Transfer-Encoding:\x0bchunked", b"Content-Length: 3\r\nContent-Length: 0"]:
            with self.subTest(head=head):
                reply = self.exchange(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\nabc")
                self.assertIn(status_of(reply), [400, 408, 413, 501])
        for size in [b"ffffffffffffffff", b"10000000000000000", b"7fffffffffffffff", b"-1", b"0x10", b" 1", b"g"]:
            with self.subTest(size=size):
                self.assertIn(status_of(self.exchange(CHUNKED + size + b"\r\nabc\r\n")), [400, 408, 413])

    def test_random_bytes_between_the_lines(self):
        body = b'{"prompt": "Hello", "max_tokens": 1}'
        seeds = [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
                 CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\nx: y\r\n\r\n",
                 b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
        pieces = [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b";", b"\xff", b"0", b"9", b"chunked", b"Content-Length: 1\r\n", b"\r\n\r\n",
                  b"HTTP/1.1", b"%00", b"A" * 300]

        def one(generator):
            data = bytearray(generator.choice(seeds))
            for _ in range(generator.randint(1, 6)):
                place = generator.randrange(len(data))
                if generator.random() < 0.5:
                    data[place:place + generator.randint(0, 3)] = generator.choice(pieces)
                else:
                    data[place] = generator.randrange(256)
            with self.server.socket() as sock:
                half = generator.randrange(len(data))
                send_all(sock, bytes(data[:half]))
                send_all(sock, bytes(data[half:]))
                sock.shutdown(1)
                return bytes(data), read_all(sock)

        for number, generator in cases("framing", 400):
            data, reply = one(generator)
            if reply:
                self.assertTrue(reply.startswith(b"HTTP/1.1 "), (number, data, reply[:200]))


class Unread(HostileTestCase):
    LIMIT_MIB = 2048

    def test_requests_that_nobody_reads_the_replies_of(self):
        """They wait in the client's socket, not in the server. When the client reads, each gets its reply, in order."""
        count = 400 * LONG
        words = "one two three " * 2000
        sent = []

        def send(sock):
            for number in range(count):
                body = json.dumps({"prompt": "%d %s" % (number, words), "return_token_strs": True, "add_special_tokens": False}).encode()
                sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                sent.append(number)

        with self.server.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
            before = self.resident()
            thread = threading.Thread(target=send, args=(sock,), daemon=True)
            thread.start()
            stalled = -1
            while stalled != len(sent):  # until the sockets are full
                stalled = len(sent)
                time.sleep(2)
            self.assertLess(stalled, count)
            if not SANITIZED:
                self.assertLess(self.resident() - before, 30)
            with sock.makefile("rb") as replies:
                for number in range(count):
                    self.assertEqual(replies.readline(), b"HTTP/1.1 200 OK\r\n", number)
                    length = 0
                    while (line := replies.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length:"):
                            length = int(line[15:])
                    reply = json.loads(replies.read(length))
                    self.assertEqual("".join(reply["token_strs"]).split(" ")[0], str(number))
            thread.join()


class Bodies(HostileTestCase):
    """Memory is short for all of these: 30 MB of JSON need more than the rest of the address space."""

    FLAGS = ["--max-body", "32MiB", "--max-body-total", "64MiB"]
    LIMIT_MIB = 700
    GROWTH_MIB = 500

    def post(self, path, body):
        return self.server.post(path, body, Host="localhost")

    def test_bodies_where_none_is_taken(self):
        for path in ["/v1/models", "/health", "/", "/metrics", "/version", "/tokenizer_info"]:
            self.assertEqual(self.server.request("GET", path, b"x" * 1000, {"Host": "localhost"}).status, 200)
            with self.server.socket() as sock:
                send_all(sock, b"GET %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" % path.encode())
                self.assertEqual(status_of(read_all(sock)), 413, path)

    def test_large_json_is_refused_and_the_server_lives(self):
        for body in [b"[" + b"1," * (14 * MIB) + b"1]", b'{"prompt": [' + b"{}," * (9 * MIB) + b"{}]}",
                     b'{"messages": [' + b'{"role":"user","content":""},' * 900000 + b'{"role":"user","content":""}]}',
                     b'{"prompt": "' + b"a " * (14 * MIB) + b'"}']:
            for path in ROUTES[:1] + ROUTES[5:6]:
                with self.subTest(body=body[:20], path=path):
                    reply = self.post(path, body)
                    self.assertIn(reply.status, [400, 413, 503] if not SANITIZED else [200, 400, 413, 503])

    def test_large_json_from_many(self):
        body = b'{"prompt": [' + b"{}," * (6 * MIB) + b"{}]}"
        found = []

        def one():
            try:
                found.append(self.post("/v1/completions", body).status)
            except OSError:
                found.append(None)  # refused before it had sent all

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 8)
        self.assertLessEqual(set(found), {400, 429, 503, None})

    def test_what_is_not_json_and_what_is_no_request(self):
        odd = [b"", b"\0", b"{}\0", b'{"prompt": "a"}\0{"prompt": "b"}', b"\xef\xbb\xbf{}", b"[" * 100000, b'{"a":' * 100000,
               b'"' + b"\\u0000" * 1000 + b'"', b"1" * 100000, b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "a", "max_tokens": 1e400}',
               b'{"prompt": "a", "n": -1}', b'{"prompt": ["a"], "stop": ' + b'"x",' * 3 + b"}", b"nul", b"-", b"{" + b'"a":1,' * 50000 + b'"b":1}']
        for path in ROUTES:
            for body in odd:
                with self.subTest(path=path, body=body[:30]):
                    good = body.startswith((b"{", b"\xef\xbb\xbf{")) and b"\0" not in body
                    self.assertIn(self.post(path, body).status, [200, 400] if good else [400])

    def test_tools_whose_parameters_are_no_object(self):
        for wrong in ["text", 5, [], True]:
            function = {"name": "f", "parameters": wrong}
            messages = [{"role": "user", "content": "Hi"}]
            for body in [{"messages": messages, "tools": [{"type": "function", "function": function}], "max_tokens": 1},
                         {"messages": [{"role": "system", "content": "", "tools": [{"type": "function", "function": function}]}] + messages,
                          "max_tokens": 1}]:
                reply = self.post("/v1/chat/completions", json.dumps(body))
                self.assertEqual(reply.status, 400, reply.body)
                self.assertIn("parameters", reply.json["error"]["message"])

    def test_random_types_in_every_field(self):
        values = [None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1.5, 1e308, "", "a", "\0", "😀", [], [[]], [None], {}, {"type": 5}, {"": {}},
                  [{"role": "user"}], [{"role": "user", "content": [{"type": "text"}]}], [-1], [2**40], "x" * 10000]
        fields = ["messages", "prompt", "input", "tools", "tool_choice", "stop", "n", "max_tokens", "temperature", "top_p", "top_k", "seed",
                  "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "response_format", "thinking", "reasoning", "system",
                  "tokens", "echo", "min_tokens", "stop_token_ids", "best_of", "text", "metadata", "previous_response_id"]
        for number, generator in cases("fields", 300):
            body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "max_tokens": 1, "max_output_tokens": 1}
            for _ in range(generator.randint(1, 4)):
                body[generator.choice(fields)] = generator.choice(values)
            path = generator.choice(ROUTES)
            if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] is True or not 0 < body["max_tokens"] < 3:
                body["max_tokens"] = generator.choice([1, "one", -1])
            reply = self.post(path, json.dumps(body))
            self.assertIn(reply.status, [200, 400, 404, 501], (number, path, body, reply.body[:300]))


class Work(HostileTestCase):
    """Many small items in a body: the work must grow with their number, not with its square."""

    GROWTH_MIB = 800  # memory used for reading 200,000 messages stays for the next ones

    def timed(self, path, body, seconds):
        text = json.dumps(body)

        def ask():
            begin = time.time()
            return self.server.post(path, text, Host="localhost"), time.time() - begin

        reply, took = best_of(3, lambda found: found[1] < seconds * SLOWNESS, ask)
        self.assertLess(took, seconds * SLOWNESS)
        return reply

    def test_many_messages(self):
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 100000
        for path in ["/tokenize", "/v1/messages/count_tokens"]:
            with self.subTest(path=path):
                reply = self.timed(path, {"messages": turns + [{"role": "user", "content": "z"}]}, 15)
                self.assertEqual(reply.status, 200, reply.body[:300])

    def test_many_names(self):
        names = {"name%d" % number: 1 for number in range(80000)}
        for body in [names, {"metadata": names}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": names}}]}]:
            reply = self.timed("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **body}, 5)
            self.assertEqual(reply.status, 400, reply.body[:300])
            self.assertIn("too many members", reply.json["error"]["message"])


if __name__ == "__main__":
    main()
