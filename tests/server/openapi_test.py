#!/usr/bin/env python3
"""/openapi.json and /docs describe what the routes do. The same tables read the requests."""

import json
import unittest

from support import SUM, Server, ServerTestCase, main

# Valid bodies, to which the test adds one field at a time.
BODIES = {"/v1/chat/completions": {"messages": SUM, "max_tokens": 1}, "/v1/completions": {"prompt": "a", "max_tokens": 1},
          "/v1/responses": {"input": "a", "max_output_tokens": 1}, "/v1/responses/compact": {"input": "a"},
          "/v1/responses/input_tokens": {"input": "a"}, "/v1/messages": {"messages": SUM, "max_tokens": 1},
          "/v1/messages/count_tokens": {"messages": SUM}, "/v1/chat/completions/render": {"messages": SUM},
          "/v1/completions/render": {"prompt": "a"}, "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [5]}}
WRONG = {"boolean": "x", "integer": "x", "number": "x", "string": 5, "array": "x", "object": "x"}


class OpenApi(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.api = cls.server.get("/openapi.json").json

    def test_every_route_is_there_and_takes_its_method(self):
        self.assertTrue(self.api["openapi"].startswith("3.1"))
        self.assertGreater(len(self.api["paths"]), 20)
        for path, operations in self.api["paths"].items():
            for method in operations:
                reply = self.server.request(method.upper(), path.replace("{name}", "nano"), {} if method == "post" else None)
                self.assertNotIn(reply.status, (405, 500), path)
                self.assertTrue(reply.status != 404 or "{name}" in path, path)
            reply = self.server.request("PATCH", path.replace("{name}", "nano"))
            self.assertEqual(reply.status, 405, path)
            self.assertEqual(set(reply.headers["allow"].split(", ")) - {"HEAD"}, {m.upper() for m in operations})

    def fields(self):
        for path, operations in self.api["paths"].items():
            if "requestBody" in operations.get("post", {}):
                schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
                yield path, schema["properties"]

    def test_every_field_is_read_and_has_its_type_and_bounds(self):
        self.assertEqual({path for path, _ in self.fields()}, set(BODIES))
        count = 0
        for path, properties in self.fields():
            self.assertEqual(self.server.post(path, BODIES[path]).status, 200, path)
            for name, schema in properties.items():
                self.assertTrue(schema["description"], name)
                wrong = [WRONG[schema["type"]]] if "type" in schema else []
                if schema.get("deprecated"):
                    wrong = ["x"]
                wrong += [schema["minimum"] - 1] if "minimum" in schema else []
                wrong += [schema["maximum"] + 1] if "maximum" in schema else []
                for value in wrong:
                    body = {**BODIES[path], name: value}
                    if path == "/tokenize" and name not in ("model", "prompt", "add_special_tokens"):
                        body.pop("prompt", None)
                        body.setdefault("messages", SUM)
                    if name == "top_logprobs" and path == "/v1/chat/completions":
                        body["logprobs"] = True
                    reply = self.server.post(path, body)
                    self.assertEqual(reply.status, 400, (path, name, value, reply.body))
                    self.assertIn(name, reply.json["error"]["message"])
                    count += 1
        self.assertGreater(count, 150)

    def test_the_page_shows_the_same(self):
        reply = self.server.get("/docs")
        self.assertEqual(reply.status, 200)
        page = reply.body.decode()
        for path, operations in self.api["paths"].items():
            for method in operations:
                self.assertIn("<code>%s %s</code>" % (method.upper(), path), page)
        for _, properties in self.fields():
            for name in properties:
                self.assertIn("<code>%s</code>" % name, page)
        self.assertNotIn("<script", page)

    def test_errors_are_as_described(self):
        def check(value, schema):
            for name, inner in schema.get("properties", {}).items():
                self.assertIn(name, value)
                check(value[name], inner)

        schemas = self.api["components"]["schemas"]
        check(self.server.post("/v1/chat/completions", {}).json, schemas["Error"])
        check(self.server.post("/v1/messages", {}).json, schemas["AnthropicError"])


class Keys(unittest.TestCase):
    def test_keys_are_part_of_it(self):
        server = Server("--api-key", "key")
        self.addCleanup(server.stop)
        self.assertEqual(server.get("/openapi.json").status, 401)
        api = json.loads(server.get("/openapi.json", Authorization="Bearer key").body)
        self.assertEqual(api["security"], [{"key": []}])
        self.assertEqual(api["paths"]["/health"]["get"]["security"], [])


if __name__ == "__main__":
    main()
