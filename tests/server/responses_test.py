#!/usr/bin/env python3
"""/v1/responses beyond one request: stored responses, log-probabilities, and requests that could multiply work."""

import json
import os
import tempfile
import unittest
from pathlib import Path

from support import SLOWNESS, SUM, Server, ServerTestCase, in_parallel, main, wait_for

ASK = SUM[0]["content"]


def follows(later, middle, first):
    """Whether two outputs of mt19937_64, 312 and 156 before a third one, give the 33 bits of it that they determine."""
    def state(y):  # undoes the tempering
        y ^= y >> 43
        y ^= (y << 37) & 0xFFF7EEE000000000
        x = y
        for _ in range(5):
            x = y ^ ((x << 17) & 0x71D67FFFEDA60000)
        y = x
        for _ in range(4):
            x = y ^ ((x >> 29) & 0x5555555555555555)
        return x

    twisted = state(later) ^ state(middle)
    if twisted >> 63:
        twisted ^= 0xB5026F5AA96619E9
    return twisted >> 30 == state(first) >> 31


class Logprobs(ServerTestCase):
    def respond(self, **body):
        reply = self.server.post("/v1/responses", {"input": ASK, "temperature": 0, **body})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.events() if body.get("stream") else reply.json

    def test_they_are_those_of_the_text(self):
        for effort in ["none", "high"]:
            asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 3, "reasoning": {"effort": effort}}
            (message,) = [item for item in self.respond(**asked)["output"] if item["type"] == "message"]
            (part,) = message["content"]
            text = "".join(entry["token"] for entry in part["logprobs"])
            self.assertEqual(text.removesuffix("<｜end▁of▁sentence｜>"), part["text"])
            for entry in part["logprobs"]:
                self.assertEqual(len(entry["top_logprobs"]), 3)
                self.assertLessEqual(entry["logprob"], 0)
                self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
            events = self.respond(stream=True, **asked)
            told = [e for name, d in events if name == "response.output_text.delta" for e in d["logprobs"]]
            done = [d["logprobs"] for name, d in events if name == "response.output_text.done"]
            self.assertEqual(done, [part["logprobs"]])
            self.assertEqual(told, part["logprobs"][:len(told)])
            self.assertGreaterEqual(len(told), len(part["logprobs"]) - 1)

    def test_an_input_that_ends_with_the_models_own_words(self):
        begun = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "27 + 48 = "}]}
        asked = {"reasoning": {"effort": "none"}, "temperature": 0, "max_output_tokens": 20}
        reply = self.server.post("/v1/responses", {"input": [*SUM, begun], **asked})
        self.assertEqual(reply.json["output"][0]["content"][0]["text"], "75.")
        search = {"type": "web_search_call", "action": {"query": "x"}}
        self.assertEqual(self.server.post("/v1/responses", {"input": [*SUM, search], **asked}).status, 200)
        call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        reply = self.server.post("/v1/responses", {"input": [*SUM, call]})
        self.assertEqual(self.refused(reply, 400, "output is missing")["param"], "input")

    def test_they_are_bounded_in_a_stream_too(self):
        asked = {"top_logprobs": 100, "stream": True, "max_output_tokens": 3000, "ignore_eos": True, "reasoning": {"effort": "none"}}
        name, last = self.respond(**asked)[-1]
        self.assertEqual(name, "response.failed")
        self.assertIn("too many log-probabilities", last["response"]["error"]["message"])

    def test_those_of_prompts_are_refused_before_anything_is_computed(self):
        ids = list(range(10, 2110))
        for prompt, n in ((ids, 64), ([ids] * 8, 8)):  # 64 times 2,100 + 2,099
            computed = self.server.metric("vllm:prompt_tokens_total")
            body = {"prompt": prompt, "echo": True, "n": n, "logprobs": 1, "max_tokens": 1}
            self.assertEqual(self.refused(self.server.post("/v1/completions", body), 400, "too many log-probabilities")["param"], "logprobs")
            self.server.wait_until_idle()
            self.assertEqual(self.server.metric("vllm:prompt_tokens_total"), computed)

    def test_a_namespace_is_part_of_each_tools_name(self):
        tools = [{"type": "namespace", "name": "n" * 250, "tools": [{"type": "function", "name": name}]} for name in ("f", "g" * 7)]
        self.assertEqual(self.server.post("/v1/responses", {"input": ASK, "max_output_tokens": 16, "tools": tools[:1]}).status, 200)
        reply = self.server.post("/v1/responses", {"input": ASK, "tools": tools})
        self.assertEqual(self.refused(reply, 400, "257 bytes together")["param"], "tools[1].tools[0].name")

    def test_none_unless_asked_for(self):
        for item in self.respond(reasoning={"effort": "none"})["output"]:
            self.assertEqual(item["content"][0]["logprobs"], [])


class Multiplied(ServerTestCase):
    def test_an_echo_in_many_choices_is_bounded(self):
        text = "And it came to pass. " * 1500
        fields = {"prompt": [text] * 8, "n": 128, "echo": True, "max_tokens": 0}
        reply = self.server.post("/v1/completions", {**fields, "prompt": [text] * 9})
        self.refused(reply, 400, "1024 completions")
        self.assertEqual(self.refused(self.server.post("/v1/completions", {**fields, "prompt": [text * 2] * 8}), 400, "bytes of prompts")["param"], "echo")
        choices = self.complete(["And it", "came to"], n=2, echo=True, max_tokens=0)["choices"]
        self.assertEqual([c["text"] for c in choices], ["And it"] * 2 + ["came to"] * 2)


class Kept(unittest.TestCase):
    def start(self, *flags):
        server = Server("--default-thinking", "off", *flags)
        self.addCleanup(server.stop)
        return server

    def respond(self, server, key="", status=200, **body):
        headers = {"Authorization": "Bearer " + key} if key else {}
        reply = server.request("POST", "/v1/responses", {"temperature": 0, "max_output_tokens": 40, **body}, headers)
        self.assertEqual(reply.status, status, reply.body)
        return reply.json

    def test_nothing_is_kept_unless_the_operator_wants_it(self):
        server = self.start()
        first = self.respond(server, input=ASK, store=True)
        self.assertIs(first["store"], False)
        error = self.respond(server, input="And?", previous_response_id=first["id"], status=400)["error"]
        self.assertEqual((error["param"], error["code"]), ("previous_response_id", "previous_response_not_found"))
        self.assertIn("--store-responses", error["message"])

    def test_a_conversation_goes_on_and_reads_only_what_is_new(self):
        server = self.start("--store-responses", "1MiB")
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}, {"type": "input_text", "text": ASK}]}
        for given in [ASK, [image]]:
            first = self.respond(server, input=given, instructions="Be brief.")
            self.assertIs(first["store"], True)
            second = self.respond(server, input="What is 1 + 1?", previous_response_id=first["id"], instructions="Be brief.")
            self.assertEqual(second["previous_response_id"], first["id"])
            whole = [{"role": "user", "content": ASK}] if given is ASK else given
            by_hand = self.respond(server, input=[*whole, *first["output"], {"role": "user", "content": "What is 1 + 1?"}],
                                   instructions="Be brief.", store=False)
            self.assertEqual(second["usage"]["input_tokens"], by_hand["usage"]["input_tokens"])
            self.assertEqual(second["output"][-1]["content"], by_hand["output"][-1]["content"])
            self.assertGreater(second["usage"]["input_tokens_details"]["cached_tokens"], 0.7 * second["usage"]["input_tokens"] - 20)
            third = self.respond(server, input="And?", previous_response_id=second["id"], stream=False)
            self.assertGreater(third["usage"]["input_tokens"], first["usage"]["input_tokens"])
            self.respond(server, input="x", previous_response_id=by_hand["id"], status=400)  # not stored

    def test_a_reply_that_continues_a_message_is_one_turn_with_it(self):
        server = self.start("--store-responses", "1MiB")
        begun = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "The answer"}]
        first = self.respond(server, input=begun)
        text = first["output"][-1]["content"][0]["text"]
        again = {"role": "user", "content": "Again?"}
        second = self.respond(server, input=[again], previous_response_id=first["id"])
        one_turn = [begun[0], {"role": "assistant", "content": "The answer" + text}, again]
        two_turns = [*begun, {"role": "assistant", "content": text}, again]
        by_hand = [self.respond(server, input=given, store=False) for given in (one_turn, two_turns)]
        self.assertEqual(second["usage"]["input_tokens"], by_hand[0]["usage"]["input_tokens"])
        self.assertLess(second["usage"]["input_tokens"], by_hand[1]["usage"]["input_tokens"])
        items = server.get("/v1/responses/%s/input_items" % second["id"]).json["data"]
        self.assertNotIn("continued", json.dumps(items))
        self.assertEqual(len(items), 4)

    def test_they_can_be_read_and_deleted(self):
        server = self.start("--store-responses", "1MiB")
        first = self.respond(server, input=ASK)
        path = "/v1/responses/" + first["id"]
        self.assertEqual(server.get(path).json, first)
        self.assertEqual(server.request("DELETE", path).json, {"id": first["id"], "object": "response", "deleted": True})
        self.assertEqual(server.get(path).status, 404)
        self.assertEqual(server.request("DELETE", path).status, 404)
        self.respond(server, input="x", previous_response_id=first["id"], status=400)
        wrong = server.request("PUT", path, {})
        self.assertEqual((wrong.status, wrong.headers["allow"]), (405, "GET, HEAD, DELETE"))

    def test_a_conversation_that_has_grown_too_large_is_refused(self):
        server = self.start("--store-responses", "256MiB")
        listed = {"type": "mcp_list_tools", "tools": [1] * 1200000}  # not part of the prompt
        first = self.respond(server, input=[*SUM, listed])
        second = self.respond(server, input=[*SUM, listed], previous_response_id=first["id"])
        error = self.respond(server, input=ASK, previous_response_id=second["id"], status=400)["error"]
        self.assertEqual(error["param"], "previous_response_id")
        self.assertIn("the conversation so far is too large", error["message"])

    @unittest.skipIf(SLOWNESS > 1, "a sanitizer keeps what is freed")
    def test_what_a_response_repeats_is_kept_as_text_and_all_is_given_back(self):
        server = self.start("--max-concurrent", "1")
        at_first = server.metric("process_resident_memory_bytes")
        busy = server.socket()
        body = json.dumps({"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True})
        busy.sendall(("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        busy.recv(100)
        body = '{"input": "x", "max_output_tokens": 16, "metadata": {"a": [%s]}}' % ",".join(["[]"] * 500000)
        head = "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        waiting = [server.socket() for _ in range(24)]
        for connection in waiting:
            connection.sendall((head + body).encode())
        resident = lambda: server.metric("process_resident_memory_bytes")  # noqa: E731
        wait_for(lambda: server.metric("vllm:num_requests_waiting") == len(waiting))
        # Freed memory returns to the system in time. As JSON values they take 28 MB each.
        wait_for(lambda: resident() / len(waiting) < 10 << 20, lambda: "%d MB are held" % (resident() / 1e6))
        self.assertEqual(server.metric("vllm:num_requests_waiting"), len(waiting))
        for connection in [busy, *waiting]:
            connection.close()
        wait_for(lambda: resident() < at_first + (64 << 20), lambda: "%d MB are held" % (resident() / 1e6))

    def test_the_oldest_go_and_keys_are_apart(self):
        server = self.start("--store-responses", "8KiB", "--api-key", "a", "--api-key", "b")
        ids = [self.respond(server, key="a", input="%d %s" % (i, "word " * 150), max_output_tokens=2)["id"] for i in range(6)]
        found = [server.get("/v1/responses/" + i, Authorization="Bearer a").status for i in ids]
        self.assertEqual((found[0], found[-1]), (404, 200))
        self.assertEqual(found, sorted(found, reverse=True))
        for method in ("GET", "DELETE"):
            self.assertEqual(server.request(method, "/v1/responses/" + ids[-1], headers={"Authorization": "Bearer b"}).status, 404)
        self.respond(server, key="b", input="x", previous_response_id=ids[-1], status=400)
        self.assertEqual(server.request("DELETE", "/v1/responses/" + ids[-1], headers={"Authorization": "Bearer a"}).status, 200)

    def test_on_disk_keys_are_apart_too(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--store-responses", "1MiB", "--kv-disk", folder, "--api-key", "a", "--api-key", "b"]
            server = self.start(*flags)
            path = "/v1/responses/" + self.respond(server, key="a", input=ASK)["id"]
            server.stop()
            server = self.start(*flags)
            id = path.rsplit("/", 1)[1]
            for method in ("GET", "DELETE"):
                self.assertEqual(server.request(method, path, headers={"Authorization": "Bearer b"}).status, 404)
            self.respond(server, key="b", input="x", previous_response_id=id, status=400)
            self.assertEqual(server.get(path, Authorization="Bearer a").status, 200)
            server.stop()

    def test_a_deleted_one_stays_deleted_when_the_server_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--store-responses", "256MiB", "--kv-disk", folder]
            # Work for the thread that writes files.
            large = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * (20 << 20)}
            server = self.start(*flags)
            for _ in range(3):
                first = self.respond(server, input=ASK, max_output_tokens=2)
                path = Path(folder) / "responses" / (first["id"] + ".json")
                wait_for(path.exists)
                in_parallel([lambda: self.respond(server, input=[large, *SUM], max_output_tokens=1)] * 2)
                self.assertEqual(server.request("DELETE", "/v1/responses/" + first["id"]).status, 200)
                self.assertFalse(path.exists())
            server.process.kill()
            server.process.wait()

    def test_nobody_foresees_an_id(self):
        # Outputs of the Mersenne twister follow from 312 earlier ones: here as bits that a client sees.
        server = self.start()
        replies = [server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}) for _ in range(180)]
        for ids in ([r.headers["x-request-id"] for r in replies], [r.json["id"] for r in replies]):
            words = [sum(int(digit, 16) << 4 * at for at, digit in enumerate(id[-24:-8])) for id in ids]
            self.assertEqual(len(set(words)), len(words))
            self.assertLess(sum(follows(words[i + 156], words[i + 78], words[i]) for i in range(20)), 5)

    def test_beside_the_kv_on_disk_they_outlive_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--store-responses", "64KiB", "--kv-disk", folder]
            server = self.start(*flags)
            first = self.respond(server, input=ASK)
            gone = self.respond(server, input=ASK)
            server.request("DELETE", "/v1/responses/" + gone["id"])
            self.assertEqual(server.stop(), 0)
            self.assertEqual(os.listdir(Path(folder) / "responses"), [first["id"] + ".json"])
            again = self.start(*flags)
            self.assertEqual(again.get("/v1/responses/" + first["id"]).json, first)
            second = self.respond(again, input="What is 1 + 1?", previous_response_id=first["id"])
            self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
            self.assertEqual(again.get("/v1/responses/..%2Fx").status, 404)
            again.stop()
            # A damaged file is ignored.
            (Path(folder) / "responses" / (first["id"] + ".json")).write_text("no")
            third = self.start(*flags)
            self.assertEqual(third.get("/v1/responses/" + first["id"]).status, 404)
            third.stop()


if __name__ == "__main__":
    main()
