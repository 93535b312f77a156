#!/usr/bin/env python3
"""HTTP itself: framing, limits, keys, lifetime of connections."""

import base64
import email.utils
import hashlib
import json
import re
import signal
import socket
import time

from support import NANO, SLOWNESS, SUM, Server, ServerTestCase, best_of, in_parallel, main

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def read_all(sock):
    data = b""
    while True:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece


def read_head(sock):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece
    return data


class Framing(ServerTestCase):
    FLAGS = ["--max-body", "20000"]

    def raw(self, data, close=True):
        with self.server.socket() as sock:
            sock.sendall(data)
            return read_all(sock) if close else read_head(sock)

    def test_hostile_framing_is_refused_and_the_connection_closed(self):
        for request in [
            b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            b"POST /tokenize HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc",
            b"POST /tokenize HTTP/1.1\nContent-Length: 3\n\nabc",
            b"POST /tokenize HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
            b"POST /tokenize HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc",
            b"GET /health HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello over TLS\r\n\r\n",
            b"GET  /health HTTP/1.1\r\n\r\n",
        ]:
            with self.subTest(request=request):
                self.assertTrue(self.raw(request).startswith(b"HTTP/1.1 400 "), self.raw(request))
        self.assertTrue(self.raw(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nx").startswith(b"HTTP/1.1 501 "))

    def test_compressed_bodies_are_named(self):
        answer = self.raw(b"POST /tokenize HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx")
        self.assertTrue(answer.startswith(b"HTTP/1.1 415 Unsupported Media Type\r\n"), answer)
        self.assertIn(b"Content-Encoding", answer)
        plain = b'Content-Encoding: identity\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}'
        self.assertTrue(self.raw(b"POST /tokenize HTTP/1.1\r\n" + plain, close=False).startswith(b"HTTP/1.1 200 "))

    def test_too_large(self):
        head = b"POST /tokenize HTTP/1.1\r\nContent-Length: 20001\r\n\r\n"
        answer = self.raw(head + b"x" * 20001)
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
        self.assertIn(b"--max-body", answer)
        answer = self.raw(b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7530\r\n" + b"x" * 30000)
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
        answer = self.raw(b"GET /health HTTP/1.1\r\nX: " + b"x" * 40000 + b"\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 431 "), answer)

    def test_a_request_may_arrive_byte_by_byte_and_in_chunks(self):
        body = json.dumps({"prompt": "Hello"}).encode()
        request = b"POST /tokenize HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with self.server.socket() as sock:
            for i in range(len(request)):
                sock.sendall(request[i:i + 1])
            answer = read_all(sock)
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i:i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
        answer = self.raw(b"POST /tokenize HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)

    def test_keep_alive_and_pipelining(self):
        with self.server.socket() as sock:
            for _ in range(3):
                sock.sendall(HEALTH)
                self.assertTrue(read_head(sock).startswith(b"HTTP/1.1 200 "))
        with self.server.socket() as sock:
            body = b'{"prompt":"a"}'
            one = b"POST /tokenize HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            sock.sendall(one * 5 + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            answer = read_all(sock)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 6)
        self.assertEqual(answer.count(b'"count":'), 5)
        self.assertIn(b'"live":true', answer)

    def test_http_1_0(self):
        answer = self.raw(b"GET /health HTTP/1.0\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
        self.assertIn(b"Connection: close", answer)
        body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True}).encode()
        answer = self.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"), answer)

    def test_expect_100_continue(self):
        with self.server.socket() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n")
            self.assertEqual(read_head(sock), b"HTTP/1.1 100 Continue\r\n\r\n")
            sock.sendall(b'{"prompt":"a"}')
            self.assertTrue(read_head(sock).startswith(b"HTTP/1.1 200 "))

    def test_head_has_no_body(self):
        answer = self.raw(b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        self.assertTrue(answer.endswith(b"\r\n\r\n"), answer)
        self.assertNotIn(b"Content-Length: 0", answer)

    def test_every_reply_has_its_date(self):
        for path in ["/health", "/nowhere"]:
            date = email.utils.parsedate_to_datetime(self.server.get(path).headers["date"])
            self.assertLess(abs(date.timestamp() - time.time()), 30)

    def test_routes_and_methods(self):
        self.refused(self.server.get("/nowhere"), 404, "/nowhere")
        self.refused(self.server.get("/v1/chat/completions"), 405, "POST")
        self.refused(self.server.post("/metrics", {}), 405, "GET")
        self.refused(self.server.post("/v1/models", {}), 405, "GET")
        self.assertEqual(self.server.get("/v1/chat/completions").headers["allow"], "POST")
        self.assertEqual(self.server.post("/v1/models", {}).headers["allow"], "GET, HEAD")
        error = self.server.get("/v1/messages")
        self.assertEqual((error.status, error.json["type"]), (405, "error"))
        self.assertEqual(self.server.get("/health/nothing").status, 404)
        for path, meant in [("/v1/v1/messages", "/v1/messages"), ("/v1/tokenize", "/tokenize"), ("/v1//tokenize/", "/tokenize")]:
            self.refused(self.server.post(path, {}), 404, f"did you mean {meant}? ")
        for path in ["/nowhere", "/v1", "/v1/", "/beta", "/beta/tokenize", "/v1/nowhere", "/beta/beta/models", "/v1/models/x/y/../z"]:
            self.assertNotIn("did you mean", self.refused(self.server.get(path), 404, "there is no ")["message"], path)

    def test_other_addresses_of_a_route(self):
        body = {"messages": SUM, "max_tokens": 2, "temperature": 0, "thinking": {"type": "disabled"}}
        whole = self.server.post("/v1/chat/completions", body).json
        for path in ["/chat/completions", "/beta/chat/completions", "/beta/v1/chat/completions", "/v1/chat/completions/",
                     "/v1//chat/completions", "//v1/chat///completions//", "/beta//chat/completions/?a=b"]:
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 200, path)
            self.assertEqual(reply.json["choices"], whole["choices"], path)
        for path in ["/models", "/v1/models/", "/beta/models", "/anthropic/v1/models"]:
            self.assertEqual(self.server.get(path).json["object"], "list", path)
        self.assertEqual(self.server.get("/models/nano/").json["id"], "nano")
        self.assertEqual(self.server.get("/health/").json["status"], "ok")
        message = self.server.post("/anthropic/v1/messages", body)
        self.assertEqual((message.status, message.json["type"]), (200, "message"))
        self.assertEqual(self.server.post("/anthropic/v1/messages/count_tokens", body).status, 200)
        # Errors have the form of the route, and metrics have its path.
        for reply, status in [(self.server.post("/anthropic/v1/messages/", {}), 400), (self.server.get("/anthropic/nowhere"), 404)]:
            self.assertEqual((reply.status, reply.json["type"]), (status, "error"))
        self.assertEqual(self.server.get("/beta/completions").headers["allow"], "POST")
        self.assertGreater(self.server.metric("dsv4_http_requests_total", route="/v1/chat/completions"), 6)

    def test_an_empty_body(self):
        for path in ["/v1/chat/completions", "/tokenize"]:
            self.refused(self.server.post(path, " \n"), 400, "the body is empty; expected a JSON object")
        self.refused(self.server.post("/v1/chat/completions", {"messages": [{"content": "x"}]}), 400, "messages[0].role is missing")

    def test_a_target_may_name_the_host(self):
        get = lambda target, host: self.raw(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))  # noqa: E731
        self.assertTrue(get(b"http://127.0.0.1/v1/models?x=1", b"elsewhere.example").startswith(b"HTTP/1.1 200 "))
        self.assertTrue(get(b"HTTP://localhost:80/health", b"localhost").startswith(b"HTTP/1.1 200 "))
        self.assertTrue(get(b"http://localhost", b"localhost").startswith(b"HTTP/1.1 200 "))  # the chat page
        self.assertTrue(get(b"http://elsewhere.example/v1/models", b"127.0.0.1").startswith(b"HTTP/1.1 403 "))

    def test_request_ids(self):
        self.assertEqual(self.server.get("/health", **{"X-Request-ID": "abc-1"}).headers["x-request-id"], "abc-1")
        made = [self.server.get("/health", **{"X-Request-ID": bad}).headers["x-request-id"] for bad in ["", "a b", "x" * 200]]
        self.assertEqual(len(set(made)), 3)
        self.assertTrue(all(i.startswith("req_") for i in made))

    def test_bodies_that_are_no_json(self):
        for body in [b"", b"{", b"[]", b"1", b"null", b'{"prompt": "\xff"}', b"[" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300,
                     b'{"prompt": 1e999}']:
            for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]:
                with self.subTest(body=body[:30], path=path):
                    self.refused(self.server.post(path, body), 400)
            reply = self.server.post("/v1/messages", body)
            self.assertEqual((reply.status, reply.json["error"]["type"]), (400, "invalid_request_error"))

    def test_no_cors(self):
        reply = self.server.get("/health", Origin="http://elsewhere")
        self.assertFalse([h for h in reply.headers if h.startswith("access-control")])
        self.assertEqual(self.server.request("OPTIONS", "/v1/models").status, 405)
        # A page of another origin may send simple requests without a preflight; the server refuses them.
        self.refused(self.server.post("/tokenize", {"prompt": "a"}, Origin="http://elsewhere"), 403, "http://elsewhere")
        same = "http://127.0.0.1:%d" % self.server.port
        self.assertEqual(self.server.post("/tokenize", {"prompt": "a"}, Origin=same).status, 200)

    def test_health_answers_behind_many_idle_connections(self):
        socks = [self.server.socket() for _ in range(300)]
        try:
            self.assertEqual(self.server.get("/health").json, {"status": "ok", "live": True, "ready": True})
            for sock in socks:  # at the same time, not after one of them was closed
                sock.setblocking(False)
                self.assertRaises(BlockingIOError, sock.recv, 1)
        finally:
            for sock in socks:
                sock.close()

    def test_an_idle_server_sleeps(self):
        def ticks():
            with open("/proc/%d/stat" % self.server.process.pid) as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        def used():
            before = ticks()
            time.sleep(2)
            return ticks() - before

        with self.server.socket():  # an open connection keeps the sweep running
            few = lambda n: n <= 4  # noqa: E731  of 200: 2 percent
            self.assertTrue(few(best_of(20, few, used)))  # work for earlier requests may still be in flight

    def test_the_page_runs_its_own_scripts_only(self):
        reply = self.server.get("/")
        page, policy = reply.body.decode(), reply.headers["content-security-policy"]
        self.assertNotIn("unsafe", policy)
        for tag in ["script", "style"]:
            own = re.findall("<%s>(.*?)</%s>" % (tag, tag), page, re.DOTALL)
            hashes = ["'sha256-%s'" % base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for x in own]
            self.assertIn("%s-src %s;" % (tag, " ".join(hashes)), policy)

    def test_no_page_is_shown_in_a_frame(self):
        pages = 0
        for path in self.server.get("/openapi.json").json["paths"]:
            reply = self.server.get(path)
            if reply.headers.get("content-type", "").startswith("text/html"):
                pages += 1
                policy = reply.headers["content-security-policy"].split("; ")
                for directive in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
                    self.assertIn(directive, policy, path)
                self.assertEqual(reply.headers["x-content-type-options"], "nosniff")
        self.assertEqual(pages, 2)


class Keys(ServerTestCase):
    FLAGS = ["--api-key", "secret-1", "--api-key", "secret-2", "--cors-origin", "http://page"]

    def test_every_route_but_health_asks_for_a_key(self):
        paths = ["/", "/metrics", "/v1/models", "/v1/models/nano", "/tokenizer_info", "/version", "/nowhere", "/favicon.ico"]
        posts = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]
        for headers in [{}, {"Authorization": "Bearer secret"}, {"Authorization": "Bearer secret-11"}, {"X-Api-Key": ""},
                        {"Authorization": "secret-1"}, {"Authorization": "Basic c2VjcmV0LTE"[:-4]}, {"Authorization": "Bearer"}]:
            for path in paths:
                self.refused(self.server.get(path, **headers), 401, "API key")
            for path in posts:
                self.refused(self.server.post(path, {}, **headers), 401)
            for path in ["/v1/messages", "/v1/messages/count_tokens"]:
                reply = self.server.post(path, {}, **headers)
                self.assertEqual((reply.status, reply.json["error"]["type"]), (401, "authentication_error"))
        for path in ["/health", "/health/live", "/health/ready"]:
            self.assertEqual(self.server.get(path).status, 200)

    def test_keys_are_accepted_in_each_form(self):
        for headers in [{"Authorization": "Bearer secret-1"}, {"Authorization": "bearer  secret-2"}, {"X-Api-Key": "secret-2"},
                        {"Authorization": "Basic dXNlcjpzZWNyZXQtMQ=="}]:
            self.assertEqual(self.server.get("/v1/models", **headers).status, 200, headers)

    def test_keys_are_not_logged(self):
        self.server.get("/v1/models", Authorization="Bearer secret-1")
        self.server.get("/v1/models?key=secret-2", Authorization="Bearer wrong-key")
        for word in ["secret", "wrong-key"]:
            self.assertNotIn(word, self.server.read_log())

    def test_cors_where_it_is_asked_for(self):
        reply = self.server.request("OPTIONS", "/v1/models")
        self.assertEqual((reply.status, reply.headers["access-control-allow-origin"]), (204, "http://page"))
        reply = self.server.get("/v1/models", Origin="http://page")
        self.assertEqual((reply.status, reply.headers["access-control-allow-origin"]), (401, "http://page"))
        self.assertEqual(self.server.get("/v1/models", Origin="http://page", **{"X-Api-Key": "secret-1"}).status, 200)
        # Another address of a route needs the same key.
        for path in ["/models", "/beta/models", "//v1/models/", "/anthropic/v1/models", "//metrics", "/metrics/"]:
            self.refused(self.server.get(path), 401, "API key")


class Origins(ServerTestCase):
    FLAGS = ["--cors-origin", "https://a.example", "--cors-origin", "https://b.example"]

    def test_each_origin_that_was_named_may_use_the_server(self):
        for origin in ["https://a.example", "https://b.example"]:
            for reply, status in [(self.server.get("/v1/models", Origin=origin), 200),
                                  (self.server.post("/v1/completions", {}, Origin=origin), 400),
                                  (self.server.get("/nowhere", Origin=origin), 404),
                                  (self.server.request("OPTIONS", "/v1/models", None, {"Origin": origin}), 204)]:
                self.assertEqual((reply.status, reply.headers.get("access-control-allow-origin")), (status, origin))
                self.assertEqual(reply.headers["vary"], "Origin")
                self.assertIn("Retry-After", reply.headers["access-control-expose-headers"])
    def test_a_page_can_read_every_refusal(self):
        origin = b"https://b.example"
        post = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        line = b"Origin: " + origin + b"\r\n"
        refusals = {
            404: b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % line,
            405: b"DELETE /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % line,
            413: post + line + b"Content-Length: 99999999999\r\n\r\n",
            415: post + line + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n",
            431: post + line + b"X-Long: " + b"x" * 40000,
            501: post + line + b"Transfer-Encoding: gzip\r\n\r\n",
        }
        lines = b"".join(b"X-%d: 1\r\n" % i for i in range(200))
        bad = [(400, post + line + rest) for rest in [b"bad line\r\n\r\n", b"Host: b\r\n\r\n", b"Content-Length: x\r\n\r\n",
                                                      b"Transfer-Encoding: \r\n\r\n", b"Content-Length: 1\r\n\r\n{",
                                                      b"Transfer-Encoding: chunked\r\n\r\nx\r\n"]]
        bad.append((400, post + b"bad line\r\n" + line.lower() + b"\r\n"))
        for status, request in [*refusals.items(), *bad, (431, post + lines + line + b"\r\n"), (431, post + line + lines + b"\r\n")]:
            for named in [origin, b"https://c.example"]:
                with self.server.socket() as sock:
                    sock.sendall(request.replace(origin, named))
                    head = read_all(sock) if status not in (404, 405) and b"\r\n\r\n{" not in request else read_head(sock)
                    self.assertIn(b"\r\nVary: Origin\r\n", head)
                    self.assertEqual(b"Access-Control-Allow-Origin: " + origin in head, named == origin, (request[:200], head))
                    if named == origin:
                        self.assertEqual(head[9:12], b"%d" % status, request[:200])

    def test_other_origins_are_not_named(self):
        for headers in [{}, {"Origin": "https://c.example"}, {"Origin": "null"}]:
            reply = self.server.get("/v1/models", **headers)
            self.assertEqual(reply.status, 403 if headers else 200)
            self.assertNotIn("access-control-allow-origin", reply.headers)


class HostNames(ServerTestCase):
    """A server that other machines reach."""
    FLAGS = ["--host", "0.0.0.0", "--allowed-host", "dsv4.example", "--allowed-host", "dsv4.test"]

    def test_only_the_names_that_were_given_are_accepted(self):
        for name in ["dsv4.example", "DSV4.example:8000", "dsv4.test", "localhost", "127.0.0.1:%d" % self.server.port, "0.0.0.0"]:
            self.assertEqual(self.server.get("/v1/models", Host=name).status, 200, name)
        self.assertEqual(self.server.get("/health", Host="elsewhere.example").status, 200)
        for name in ["elsewhere.example", "example", "a.dsv4.example", "dsv4.example.com", "192.0.2.1"]:
            for path in ["/v1/models", "/", "/metrics", "/nowhere"]:
                self.refused(self.server.get(path, Host=name), 403, name, "--allowed-host")
            self.refused(self.server.post("/tokenize", {"prompt": "a"}, Host=name), 403, name)

    def test_without_names_all_are_accepted(self):
        server = Server("--host", "0.0.0.0")
        self.addCleanup(server.stop)
        self.assertEqual(server.get("/v1/models", Host="elsewhere.example").status, 200)


class Life(ServerTestCase):
    FLAGS = ["--max-connections", "3"]

    def test_too_many_connections(self):
        held = [self.server.socket() for _ in range(3)]
        try:
            for sock in held:
                sock.sendall(HEALTH)
                read_head(sock)
            with self.server.socket() as sock:
                self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 503 "))
            # Connections beyond the limit are for health alone.
            for path, status in [(b"/v1/models", b"503"), (b"/metrics", b"503"), (b"/", b"503"), (b"/health", b"200")]:
                with self.server.socket() as sock:
                    sock.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
                    self.assertTrue(read_all(sock).startswith(b"HTTP/1.1 " + status), path)
        finally:
            for sock in held:
                sock.close()


class Start(ServerTestCase):
    def test_a_taken_port_is_an_error(self):
        import subprocess
        from support import BINARY
        result = subprocess.run([BINARY, "serve", "--port", str(self.server.port)], capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"--port", result.stderr.splitlines()[-1])

    def test_models_and_version(self):
        models = self.server.get("/v1/models").json
        self.assertEqual(models["data"][0]["id"], "nano")
        self.assertEqual(models["data"][0]["max_model_len"], 1048576)
        self.assertEqual(self.server.get("/v1/models/nano").json["id"], "nano")
        self.refused(self.server.get("/v1/models/other"), 404, "other")
        self.assertIn("version", self.server.get("/version").json)

    def test_tokenizer_routes(self):
        text = "Hello <｜User｜> wörld 🙂"
        plain = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json
        with_bos = self.server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
        self.assertEqual(with_bos["tokens"], [0] + plain["tokens"])
        self.assertEqual(with_bos["count"], len(with_bos["tokens"]))
        self.assertIn("<｜User｜>", with_bos["token_strs"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": plain["tokens"]}).json, {"prompt": text})
        self.refused(self.server.post("/detokenize", {"tokens": [1, 4096]}), 400, "tokens[1]", "4095")
        info = self.server.get("/tokenizer_info").json
        self.assertEqual(info["eos_token"], "<｜end▁of▁sentence｜>")
        chat = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json
        self.assertEqual(self.server.post("/detokenize", chat).json["prompt"],
                         "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>")

    def test_an_effort_of_none_is_no_reasoning(self):
        user, kwargs = [{"role": "user", "content": "Hi"}], {"reasoning_effort": "none"}
        for fields, end in [(kwargs, "</think>"), ({"reasoning": {"effort": "none"}}, "</think>"),
                            ({"chat_template_kwargs": kwargs}, "</think>"), ({}, "<think>"),
                            ({"chat_template_kwargs": {**kwargs, "thinking": True}}, "<think>")]:
            ids = self.server.post("/tokenize", {"messages": user, "return_token_strs": True, **fields}).json
            self.assertEqual(ids["token_strs"][-1], end, fields)

    def test_tokenize_reads_a_chat_as_the_chat_route_does(self):
        user = {"role": "user", "content": "Hi"}
        image = {"type": "image_url", "image_url": {"url": "x"}}
        for fields in [{"messages": [{"role": "developer", "content": "Be brief."}, user]}, {"messages": [user], "thinking": False},
                       {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "Hi"}]}]},
                       {"messages": [user], "tools": [{"type": "custom", "custom": {"name": "shell"}}]},
                       {"messages": [user, {"role": "assistant", "content": "Hel"}], "continue_final_message": True},
                       {"messages": [user], "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}]:
            tokens = self.server.post("/tokenize", fields)
            self.assertEqual(tokens.status, 200, tokens.body)
            reply = self.server.post("/v1/chat/completions", {"max_tokens": 1, **fields}).json
            self.assertEqual(tokens.json["count"], reply["usage"]["prompt_tokens"], fields)
            self.assertEqual(tokens.json["tokens"], self.server.post("/v1/chat/completions/render", fields).json["token_ids"])


class Drain(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def start_stream(self, server, max_tokens):
        sock = server.socket()
        body = json.dumps({"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        read_head(sock)
        return sock

    def test_a_running_stream_is_finished(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            server = Server()
            with self.start_stream(server, 30) as sock, server.socket() as idle:
                server.get("/health")  # all earlier connections have been accepted
                server.process.send_signal(number)
                self.assertEqual(read_all(idle), b"")
                self.assertIn(b"data: [DONE]", read_all(sock))
            self.assertEqual(server.stop(), 0)

    def test_a_finished_reply_is_written_to_its_end(self):
        server = Server("--drain-timeout", "300")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the reply, 11 MB, waits in the server
            sock.settimeout(120 * SLOWNESS)
            sock.connect(("127.0.0.1", server.port))
            body = json.dumps({"prompt": "one two " * 500000, "return_token_strs": True}).encode()
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head, _, start = read_head(sock).partition(b"\r\n\r\n")
            length = int(re.search(rb"Content-Length: (\d+)", head)[1])
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_draining()
            self.assertEqual(len(start) + len(read_all(sock)), length)
        self.assertEqual(server.stop(), 0)

    def test_the_drain_ends(self):
        server = Server("--drain-timeout", "0")
        with self.start_stream(server, 100000) as sock:
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b"shutting down", read_all(sock))
        self.assertEqual(server.stop(), 0)

    def test_a_second_signal_ends_at_once(self):
        server = Server("--drain-timeout", "1000")
        with self.start_stream(server, 100000):
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_draining()  # of two pending signals a process sees only one
            self.assertEqual(server.stop(), 0)

    def test_while_draining_readiness_says_no(self):
        server = Server("--drain-timeout", "300")
        with self.start_stream(server, 100000):  # the client leaves before the end
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_draining()
            reply = server.get("/health/ready")
            self.assertEqual((reply.status, reply.json["status"], reply.json["live"]), (503, "draining", True))
            self.assertEqual(server.get("/health/live").status, 200)
            self.refused(server.post("/tokenize", {"prompt": "a"}), 503, "shutting down")
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
