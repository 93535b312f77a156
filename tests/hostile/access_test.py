#!/usr/bin/env python3
"""Requests that must be refused: without a key or with a guessed one, to another host, from another origin, by odd
paths."""

from campaign import MIB, SANITIZED, HostileTestCase, cases, main, read_all, send_all, status_of, wait_for

PATHS = ["/", "/metrics", "/v1/models", "/version", "/tokenizer_info", "/v1/chat/completions", "/v1/messages", "/tokenize"]


class Keyless(HostileTestCase):
    def test_names_of_other_hosts(self):
        for host in ["evil.example", "evil.example:%d" % self.server.port, "127.0.0.1.evil.example", "localhost.evil.example", "[::2]",
                     "10.0.0.1", "xn--localhost", "0x7f.1", "2130706433", "localhost@evil.example", "evil.example#localhost"]:
            for path in PATHS:
                headers = {"Host": host, "Origin": "http://" + host}
                self.assertEqual(self.server.get(path, **headers).status, 403, (host, path))
                self.assertEqual(self.server.post(path, "{}", **headers).status, 403, (host, path))
        for host in ["localhost", "localhost:%d" % self.server.port, "127.0.0.1", "127.8.8.8:1", "[::1]:%d" % self.server.port]:
            self.assertEqual(self.server.get("/v1/models", Host=host, Origin="http://" + host).status, 200, host)

    def test_two_hosts(self):
        for one, other in [(b"localhost", b"evil.example"), (b"evil.example", b"localhost")]:
            with self.server.socket() as sock:
                send_all(sock, b"GET /v1/models HTTP/1.1\r\nHost: " + one + b"\r\nHost: " + other + b"\r\n\r\n")
                self.assertEqual(status_of(read_all(sock)), 400)

    def test_other_origins(self):
        for origin in ["http://evil.example", "null", "file://", "http://localhost.evil.example", "http://localhost:1", "//localhost", "x"]:
            for path in PATHS:
                self.assertEqual(self.server.post(path, "{}", Origin=origin).status, 403, (origin, path))


class Keys(HostileTestCase):
    FLAGS = ["--api-key", "right-key", "--max-body-total", "40MiB", "--key-guesses", "3"]
    HEADERS = {"X-Api-Key": "right-key"}
    GROWTH_MIB = 60

    def tearDown(self):
        # Waits until the rate limit of this test no longer affects the next one.
        wait_for(lambda: self.server.get("/v1/models", **self.HEADERS).status != 429)
        super().tearDown()

    def test_bodies_without_a_key_are_not_read(self):
        socks = []
        try:
            for _ in range(64):
                sock = self.server.socket()
                socks.append(sock)
                send_all(sock, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n")
                send_all(sock, b"x" * MIB)
            if not SANITIZED:
                self.assertLess(self.resident() - self.before, self.GROWTH_MIB)
            for sock in socks:
                self.assertIn(status_of(read_all(sock)), [401, None])
        finally:
            for sock in socks:
                sock.close()

    def test_no_100_continue_without_a_key(self):
        with self.server.socket() as sock:
            send_all(sock, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n")
            reply = read_all(sock)
        self.assertEqual(status_of(reply), 401)
        self.assertNotIn(b"100 Continue", reply)

    def test_bodies_with_a_key_have_a_budget(self):
        socks, found = [], []
        try:
            for _ in range(8):
                sock = self.server.socket()
                socks.append(sock)
                send_all(sock, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: right-key\r\nContent-Length: 20000000\r\n\r\n")
                send_all(sock, b" " * (10 * MIB))
            for sock in socks:
                sock.setblocking(False)

            def one_is_refused():
                for sock in socks:
                    try:
                        found.append(status_of(sock.recv(100)))
                    except (BlockingIOError, ConnectionResetError):
                        pass
                return 503 in found

            wait_for(one_is_refused, lambda: "found: %s" % found)
        finally:
            for sock in socks:
                sock.close()

    def test_a_key_in_the_wrong_place_opens_nothing(self):
        for path in ["/v1/models?key=right-key", "/v1/models?api_key=right-key", "/right-key", "/v1/models/right-key"]:
            self.assertEqual(self.server.get(path).status, 401, path)
        for name in ["Cookie", "X-Api-Key2", "Key", "Proxy-Authorization"]:
            self.assertEqual(self.server.get("/v1/models", **{name: "right-key"}).status, 401, name)
        with self.server.socket() as sock:  # in the trailer, and in a second request's header
            send_all(sock, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                           b"e\r\n{\"prompt\":\"a\"}\r\n0\r\nX-Api-Key: right-key\r\n\r\n"
                           b"GET /v1/models HTTP/1.1\r\nX-Api-Key: right-key\r\n\r\n")
            reply = read_all(sock)
        self.assertEqual((status_of(reply), reply.count(b"HTTP/1.1 ")), (401, 1))

    def test_roundabout_paths(self):
        for path in ["//v1/models", "/health/../v1/models", "/health/..%2fmetrics", "/v1/models/../../health", "/healthx/v1/models", "/HEALTH",
                     "/health%00", "http://localhost/health", "*", "/health;/metrics", "/health?/metrics", "/health/ready/../../metrics"]:
            reply = self.server.get(path)
            self.assertTrue(reply.status in (401, 404, 400) or set(reply.json) == {"status", "live", "ready"}, (path, reply.body[:200]))

    def test_guesses_are_slowed_down(self):
        statuses = [self.server.get("/v1/models", **{"X-Api-Key": "guess-%d" % i}).status for i in range(300)]
        self.assertEqual(set(statuses), {401, 429})
        self.assertEqual(self.server.get("/health").status, 200)

    def test_keys_never_reach_the_log(self):
        for number, generator in cases("keys", 30):
            name = generator.choice(["Authorization", "X-Api-Key", "authorization", "X-API-KEY"])
            value = generator.choice(["Bearer %s", "bearer  %s", "Basic %s", "%s", "Token %s"]) % ("secret%d" % number)
            self.server.get(generator.choice(PATHS) + "?k=secret", **{name: value})
        self.assertNotIn("secret", self.server.read_log())


if __name__ == "__main__":
    main()
