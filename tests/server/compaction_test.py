#!/usr/bin/env python3
"""/v1/responses: summaries and encrypted_content of reasoning, compaction, input_tokens and input_items."""

import unittest

from support import SUM, Server, ServerTestCase, main

ASK = SUM[0]["content"]
TURNS = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello. How can I help you?"},
         {"role": "user", "content": [{"type": "input_text", "text": ASK}]}]


class Responses(ServerTestCase):
    def respond(self, path="/v1/responses", status=200, **body):
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, status, reply.body)
        return reply.events() if body.get("stream") else reply.json

    def tokens(self, items, **body):
        return self.respond("/v1/responses/input_tokens", input=items, **body)["input_tokens"]


class Reasoning(Responses):
    def reasoning_of(self, **body):
        output = self.respond(input=ASK, temperature=0, max_output_tokens=200, **body)["output"]
        self.assertEqual([item["type"] for item in output], ["reasoning", "message"])
        return output[0]

    def test_a_summary_is_the_reasoning(self):
        text = self.reasoning_of()["content"][0]["text"]
        self.assertEqual(self.reasoning_of(reasoning={"summary": None})["summary"], [])
        for asked in [{"summary": "auto"}, {"summary": "detailed"}, {"generate_summary": "concise"}]:
            item = self.reasoning_of(reasoning=asked)
            self.assertEqual((item["summary"], item["content"]), ([{"type": "summary_text", "text": text}], []))
        self.refused(self.server.post("/v1/responses", {"input": ASK, "reasoning": {"summary": "long"}}), 400, "reasoning.summary", "detailed")

    def test_a_summary_in_a_stream(self):
        events = self.respond(input=ASK, temperature=0, max_output_tokens=200, stream=True, reasoning={"summary": "auto"})
        names = [name for name, _ in events]
        first = [name for name in names if "reasoning" in name]
        self.assertEqual((first[0], first[-2:]), ("response.reasoning_summary_part.added",
                                                  ["response.reasoning_summary_text.done", "response.reasoning_summary_part.done"]))
        self.assertNotIn("response.reasoning_text.delta", names)
        whole = events[-1][1]["response"]["output"][0]
        text = "".join(d["delta"] for name, d in events if name == "response.reasoning_summary_text.delta")
        self.assertEqual(whole["summary"], [{"type": "summary_text", "text": text}])
        self.assertEqual({d["summary_index"] for name, d in events if "reasoning_summary" in name}, {0})
        self.assertEqual([d["item"] for name, d in events if name == "response.output_item.done"][0], whole)

    def test_encrypted_content_is_read_back(self):
        plain = self.reasoning_of()
        self.assertNotIn("encrypted_content", plain)
        sealed = self.reasoning_of(include=["reasoning.encrypted_content"], store=False)
        self.assertNotIn(plain["content"][0]["text"], sealed["encrypted_content"])
        kept = {"drop_thinking": False}
        history = lambda item: [{"role": "user", "content": ASK}, item, {"role": "assistant", "content": "75"}, {"role": "user", "content": "And?"}]  # noqa: E731
        whole = self.tokens(history(plain), **kept)
        for item in [{"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]},
                     {"type": "reasoning", "content": None, "encrypted_content": sealed["encrypted_content"]},
                     {"type": "reasoning", "summary": [{"type": "summary_text", "text": plain["content"][0]["text"]}]},
                     {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": sealed["encrypted_content"]}, sealed]:
            self.assertEqual(self.tokens(history(item), **kept), whole, item)
        # The text of another service cannot be read, and is no error.
        other = self.tokens(history({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"}), **kept)
        self.assertEqual(other, self.tokens(history({"type": "reasoning", "summary": []}), **kept))
        self.assertLess(other, whole)
        for damaged in ["dsv4.1.", "dsv4.1.!!", "dsv4.1./////w==", 5, {"a": 1}]:
            self.tokens(history({"type": "reasoning", "summary": [], "encrypted_content": damaged}), **kept)


class Tokens(Responses):
    def test_they_are_those_that_a_response_counts(self):
        tool = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
        for body in [{"input": ASK}, {"input": TURNS, "instructions": "Be brief."}, {"input": TURNS, "tools": [tool], "reasoning": {"effort": "none"}},
                     {"input": ASK, "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}}]:
            found = self.respond("/v1/responses/input_tokens", **body)
            self.assertEqual(found, {"object": "response.input_tokens", "input_tokens": self.respond(**body, max_output_tokens=1)["usage"]["input_tokens"]})
        self.refused(self.server.post("/v1/responses/input_tokens", {"input": 5}), 400, "input")
        self.assertEqual(self.server.get("/v1/responses/input_tokens").headers["allow"], "POST")


class Compaction(Responses):
    def test_a_conversation_becomes_its_users_messages_and_a_summary(self):
        reply = self.respond("/v1/responses/compact", input=TURNS, instructions="Be brief.")
        self.assertEqual(reply["object"], "response.compaction")
        self.assertEqual([item["type"] for item in reply["output"]], ["message", "message", "compaction"])
        self.assertEqual([item["content"][0]["text"] for item in reply["output"][:2]], ["Hello!", ASK])
        self.assertEqual(len({item["id"] for item in reply["output"]}), 3)
        usage = reply["usage"]
        self.assertGreater(usage["input_tokens"], self.tokens(TURNS))
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        # The model reads the summary: the next prompt has its tokens.
        after = [*reply["output"], {"role": "user", "content": "And?"}]
        bare = [*reply["output"][:2], {"role": "user", "content": "And?"}]
        self.assertGreater(self.tokens(after), self.tokens(bare) + usage["output_tokens"] - 2)
        self.assertEqual(self.respond(input=after, max_output_tokens=3)["status"], "incomplete")
        # Without another message, in the middle of a turn, the model continues.
        self.assertEqual(self.respond(input=reply["output"], max_output_tokens=3)["usage"]["output_tokens"], 3)

    def test_a_trigger_brings_one_item(self):
        asked = [*TURNS, {"type": "compaction_trigger"}]
        reply = self.respond(input=asked)
        self.assertEqual((reply["object"], reply["status"]), ("response", "completed"))
        (item,) = reply["output"]
        self.assertEqual(item["type"], "compaction")
        events = self.respond(input=asked, stream=True)
        names = [name for name, _ in events]
        self.assertEqual(names, ["response.created", "response.in_progress", "response.output_item.added", "response.output_item.done", "response.completed"])
        (streamed,) = events[-1][1]["response"]["output"]
        self.assertEqual((streamed["type"], events[3][1]["item"]), ("compaction", streamed))
        # Elsewhere in a history it says nothing.
        self.assertEqual(self.tokens([TURNS[0], {"type": "compaction_trigger"}, *TURNS[1:]]), self.tokens(TURNS))

    def test_calls_without_results_and_tools(self):
        tool = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
        call = {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}
        for items in [[TURNS[0], call], [TURNS[0], call, {"type": "function_call_output", "call_id": "a", "output": "noon"}]]:
            for body in [{"tools": [tool]}, {"tools": [tool], "tool_choice": "required"}, {"text": {"format": {"type": "json_object"}}}]:
                output = self.respond("/v1/responses/compact", input=items, **body)["output"]
                self.assertEqual([item["type"] for item in output], ["message", "compaction"])

    def test_a_model_that_writes_nothing_is_an_error(self):
        eos = self.server.post("/tokenize", {"prompt": "<｜end▁of▁sentence｜>", "add_special_tokens": False}).json["tokens"][0]
        silent = {"input": [*TURNS, {"type": "compaction_trigger"}], "logit_bias": {str(eos): 100}}
        self.refused(self.server.post("/v1/responses", silent), 500, "no summary")
        events = self.respond(**silent, stream=True)
        self.assertEqual(events[-1][0], "response.failed")
        self.assertNotIn("response.completed", [name for name, _ in events])

    def test_items_of_other_services(self):
        note = self.tokens([TURNS[0], {"type": "compaction", "encrypted_content": "gAAAAABo"}, TURNS[2]])
        self.assertGreater(note, self.tokens([TURNS[0], TURNS[2]]))


class Stored(unittest.TestCase):
    def setUp(self):
        self.server = Server("--store-responses", "4MiB", "--default-thinking", "off", "--api-key", "a", "--api-key", "b")
        self.addCleanup(self.server.stop)

    def call(self, method, path, body=None, status=200, key="a"):
        reply = self.server.request(method, path, body, {"Authorization": "Bearer " + key})
        self.assertEqual(reply.status, status, reply.body)
        return reply.json

    def respond(self, **body):
        return self.call("POST", "/v1/responses", {"temperature": 0, "max_output_tokens": 8, **body})

    def test_the_input_items_of_a_response(self):
        first = self.respond(input=ASK)
        path = "/v1/responses/%s/input_items" % first["id"]
        found = self.call("GET", path)
        (item,) = found["data"]
        self.assertEqual((found["object"], found["has_more"], found["first_id"], found["last_id"]), ("list", False, item["id"], item["id"]))
        self.assertEqual((item["type"], item["role"], item["content"]), ("message", "user", [{"type": "input_text", "text": ASK}]))
        second = self.respond(input=[{"role": "user", "content": "And %d?" % i} for i in range(30)], previous_response_id=first["id"])
        path = "/v1/responses/%s/input_items" % second["id"]
        texts = lambda query: [i["content"][0]["text"] for i in self.call("GET", path + query)["data"]]  # noqa: E731
        answer = first["output"][0]["content"][0]["text"]
        oldest = [ASK, answer] + ["And %d?" % i for i in range(30)]
        self.assertEqual(texts("?limit=100&order=asc"), oldest)
        self.assertEqual(texts("?limit=100"), oldest[::-1])
        self.assertEqual(texts(""), oldest[::-1][:20])
        self.assertTrue(self.call("GET", path)["has_more"])
        seen, query = [], "?order=asc&limit=7"
        while True:
            page = self.call("GET", path + query)
            seen += [i["content"][0]["text"] for i in page["data"]]
            if not page["has_more"]:
                break
            query = "?order=asc&limit=7&after=" + page["last_id"]
        self.assertEqual(seen, oldest)
        for query in ["?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=nothing"]:
            self.call("GET", path + query, status=400)
        for other in ["/v1/responses/resp_nothing/input_items", "/v1/responses/input_items", "/v1/responses/a/b/input_items"]:
            self.call("GET", other, status=404)

    def test_another_key_does_not_see_them(self):
        first = self.respond(input=ASK)
        self.call("GET", "/v1/responses/%s/input_items" % first["id"], status=404, key="b")
        self.call("POST", "/v1/responses/compact", {"previous_response_id": first["id"]}, status=400, key="b")
        self.call("POST", "/v1/responses/input_tokens", {"previous_response_id": first["id"]}, status=400, key="b")
        path = "/v1/responses/" + first["id"]
        for method in ["GET", "DELETE"]:
            self.call(method, path, status=404, key="b")
        for status in [200, 404]:
            self.call("DELETE", path, status=status)

    def test_a_compacted_conversation_continues(self):
        first = self.respond(input=[{"role": "user", "content": "Hello! " * 60}], instructions="Be brief.")
        second = self.respond(input=[{"type": "compaction_trigger"}], previous_response_id=first["id"], max_output_tokens=20)
        self.assertEqual([item["type"] for item in second["output"]], ["compaction"])
        items = self.call("GET", "/v1/responses/%s/input_items" % second["id"])["data"]
        self.assertEqual([item["role"] for item in items], ["user"])  # the user's message; the reply is in the summary
        third = self.respond(input="And?", previous_response_id=second["id"])
        by_hand = self.respond(input=[items[0], *second["output"], {"role": "user", "content": "And?"}], store=False)
        self.assertEqual(third["usage"]["input_tokens"], by_hand["usage"]["input_tokens"])
        compacted = self.call("POST", "/v1/responses/compact", {"previous_response_id": first["id"]})
        self.assertEqual([item["type"] for item in compacted["output"]][-1], "compaction")


if __name__ == "__main__":
    main()
