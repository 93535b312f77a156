#!/usr/bin/env python3
"""The requests that agents send in a long session: nothing in their history may end the session."""

import base64
import json
import unittest

from support import SUM, WEATHER_TOOL, Server, ServerTestCase, main

PIXEL = "iVBORw0KGgo="
NOTE = "[image left out: this model reads text]"


class Agents(ServerTestCase):
    FLAGS = ["--default-thinking", "off"]

    def text(self, body, route):
        """The prompt of a chat request; the reply of other requests."""
        reply = self.server.post(route, body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def prompt(self, messages, **fields):
        tokens = self.text({"messages": messages, **fields}, "/tokenize")["tokens"]
        return self.text({"tokens": tokens}, "/detokenize")["prompt"]

    def echo(self, route, body):
        """The number of prompt tokens: shows that the request is accepted and that its contents count."""
        reply = self.text(body, route)
        usage = reply["usage"]
        return usage.get("prompt_tokens") or usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0)

    # ---- Images and documents

    CHAT = [{"role": "user", "content": [{"type": "text", "text": "Look."},
                                         {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXEL}}]},
            {"role": "assistant", "content": "I see.", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "shot", "arguments": "[]"}}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": {"url": "x"}},
                                                             {"type": "text", "text": "taken"}]},
            {"role": "user", "content": "And now?"}]

    def test_chats_go_on_behind_images(self):
        reply = self.chat(self.CHAT, max_tokens=3, tools=[WEATHER_TOOL])
        self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        plain = json.loads(json.dumps(self.CHAT))
        plain[0]["content"] = [{"type": "text", "text": "Look."}, {"type": "text", "text": NOTE}]
        plain[2]["content"] = NOTE + "\n\ntaken"
        self.assertEqual(self.chat(plain, max_tokens=3, tools=[WEATHER_TOOL])["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens"])
        # Only the last question must contain readable text.
        last = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        error = self.refused(self.server.post("/v1/chat/completions", {"messages": [*self.CHAT, last]}), 400, "text only")
        self.assertEqual(error["param"], "messages[4].content")
        last["content"].append({"type": "text", "text": "What is this?"})
        self.chat([*self.CHAT, last], max_tokens=2)
        last["content"] = [{"type": "text", "text": "Earlier."}]
        self.chat([*self.CHAT, {"role": "user", "content": [{"type": "hologram"}]}, last], max_tokens=2)

    def test_messages_go_on_behind_images_and_documents(self):
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        text = base64.b64encode("Ferries leave at nine.".encode()).decode()
        messages = [
            {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "Look."},
                                         {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
                                         {"type": "document", "title": "Plan", "source": {"type": "text", "media_type": "text/plain",
                                                                                          "data": "Ferries leave at nine."}},
                                         {"type": "container_upload", "file_id": "f"}]},
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
                                              {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
                                                  {"type": "web_search_result", "title": "T", "url": "http://u", "encrypted_content": "e"}]},
                                              {"type": "text", "text": "I see."},
                                              {"type": "tool_use", "id": "1", "name": "shot", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
                {"type": "image", "source": source}, {"type": "tool_reference", "tool_name": "other"},
                {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": text}},
                {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "nine"}]}]}]}]
        body = {"model": "x", "max_tokens": 3, "messages": messages}
        whole = self.echo("/v1/messages", body)
        self.assertEqual(self.text(body, "/v1/messages/count_tokens")["input_tokens"], whole)
        del messages[0]["content"][3]  # the text document was read, so it counts
        self.assertGreater(whole - self.echo("/v1/messages", body), 5)
        messages.append({"role": "assistant", "content": "Fine."})
        messages.append({"role": "user", "content": [{"type": "image", "source": source}]})
        reply = self.server.post("/v1/messages", body)
        self.assertEqual((reply.status, reply.json["error"]["type"]), (400, "invalid_request_error"))
        self.assertIn("messages[4].content", reply.json["error"]["message"])

    def test_items_of_responses_are_read_or_noted(self):
        shell = {"type": "local_shell_call", "id": "l", "call_id": "c1", "status": "completed",
                 "action": {"type": "exec", "command": ["ls", "-l"], "env": {}}}
        items = [
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "Look."},
                                         {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,x"}]},
            shell, {"type": "local_shell_call_output", "call_id": "c1", "output": "total 0"},
            {"type": "shell_call", "call_id": "c2", "action": {"commands": ["pwd"]}},
            {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "/root", "stderr": "",
                                                                      "outcome": {"type": "exit", "exit_code": 0}}]},
            {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "update_file", "path": "a", "diff": "+x"}},
            {"type": "apply_patch_call_output", "call_id": "c3", "status": "completed", "output": "done"},
            {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
            {"type": "mcp_call", "id": "m1", "server_label": "s", "name": "find", "arguments": "{\"q\": 1}", "output": "found"},
            {"type": "tool_search_call", "call_id": "c4", "arguments": {"query": "x"}},
            {"type": "tool_search_output", "call_id": "c4", "tools": [{"type": "function", "name": "other"}]},
            {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "ferries"}},
            {"type": "code_interpreter_call", "id": "i", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "x"}]},
            {"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"text": "nine"}]},
            {"type": "custom_tool_call", "call_id": "c5", "name": "exec", "input": "not json"},
            {"type": "custom_tool_call_output", "call_id": "c5", "output": [{"type": "input_text", "text": "ran"},
                                                                            {"type": "input_image", "image_url": "x"}]},
            {"type": "item_reference", "id": "msg_1"}, {"type": "compaction", "encrypted_content": "e"},
            {"type": "image_generation_call", "id": "g", "result": "x"}, {"type": "telepathy", "thought": "x"},
            {"role": "user", "content": "And now?"}]
        body = {"input": items, "max_output_tokens": 3}
        whole = self.echo("/v1/responses", body)
        # Each item adds tokens to the prompt, except the list of tools.
        for i, item in enumerate(items[:-1]):
            if item.get("type", "").endswith(("_output", "mcp_list_tools")):
                continue
            rest = [other for other in items if other is not item]
            self.assertLess(self.echo("/v1/responses", {"input": rest, "max_output_tokens": 3}), whole, item)

    # ---- Tools that the client finds later

    LATE = {"name": "ferry_times", "description": "When the ferries leave. " * 20}
    SCHEMA = {"type": "object", "properties": {"port": {"type": "string"}}}

    def test_a_tool_that_is_found_leaves_the_beginning_of_the_prompt_as_it_is(self):
        search = {"name": "search", "description": "Finds tools. " * 60, "input_schema": self.SCHEMA}
        late = {**self.LATE, "input_schema": self.SCHEMA}
        first = {"max_tokens": 2, "tools": [search], "messages": [{"role": "user", "content": "When does the ferry leave?"}]}
        prompt = self.echo("/v1/messages", first)
        count = lambda body: self.text(body, "/v1/messages/count_tokens")["input_tokens"]
        self.assertEqual(count({**first, "tools": [{**late, "defer_loading": True}, search]}), prompt)
        self.assertGreater(count({**first, "tools": [late, search]}), prompt + 80)
        # Anthropic's servers would search here, but this server cannot: the model gets all tools.
        elsewhere = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
        self.assertGreater(count({**first, "tools": [{**late, "defer_loading": True}, search, elsewhere]}), prompt + 80)
        found = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": late["name"]}]}
        second = {**first, "tools": [{**late, "defer_loading": True}, search], "messages": [
            *first["messages"], {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "search", "input": {}}]},
            {"role": "user", "content": [found]}]}
        usage = self.text(second, "/v1/messages")["usage"]
        self.assertGreaterEqual(usage["cache_read_input_tokens"], prompt - 1)
        self.assertGreater(usage["input_tokens"], 80)  # the model gets the tool where it was found
        second["tools"] = [search]
        self.assertLess(self.echo("/v1/messages", second), prompt + 80)  # only its name counts

    def test_the_same_of_responses(self):
        search = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": self.SCHEMA}
        run = {"type": "function", "name": "run", "description": "Runs a command. " * 60, "parameters": self.SCHEMA}
        late = {"type": "function", **self.LATE, "parameters": self.SCHEMA}
        said = {"role": "user", "content": "When does the ferry leave?"}
        body = {"max_output_tokens": 2, "store": False, "tools": [run, search], "input": [said]}
        prompt = self.echo("/v1/responses", body)
        self.assertEqual(self.echo("/v1/responses", {**body, "tools": [run, search, {**late, "defer_loading": True}]}), prompt)
        self.assertGreater(self.echo("/v1/responses", {**body, "tools": [run, {**late, "defer_loading": True}]}), prompt + 80)
        body["input"] = [said, {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "ferry"}},
                         {"type": "tool_search_output", "call_id": "c", "execution": "client",
                          "tools": [{"type": "namespace", "name": "port", "description": "The port.", "tools": [late]}, {}, "x"]}]
        usage = self.text(body, "/v1/responses")["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(cached, prompt - 1)
        self.assertGreater(usage["input_tokens"], prompt + 80)
        # It can be called by both of its names.
        body |= {"tool_choice": {"type": "function", "name": "port__ferry_times"}, "parallel_tool_calls": False, "max_output_tokens": 60,
                 "temperature": 0}
        (call,) = [item for item in self.text(body, "/v1/responses")["output"] if item["type"] == "function_call"]
        self.assertEqual((call["namespace"], call["name"]), ("port", "ferry_times"))

    # ---- Prompts that are too long

    def test_every_api_says_so_in_its_own_words(self):
        server = Server("--max-prompt", "50", "--default-thinking", "off")
        self.addCleanup(server.stop)
        long = "word " * 200
        chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]})
        error = self.refused(chat, 400, "This model's maximum context length is 50 tokens. However, your messages resulted in")
        self.assertEqual((error["code"], error["param"]), ("context_length_exceeded", "messages"))
        error = self.refused(server.post("/v1/completions", {"prompt": long}), 400, "This model's maximum context length is 50")
        self.assertEqual((error["code"], error["param"]), ("context_length_exceeded", "prompt"))
        reply = server.post("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": long}]})
        self.assertEqual(reply.status, 400)
        self.assertRegex(reply.json["error"]["message"], r"^prompt is too long: \d+ tokens > 50 maximum$")
        error = self.refused(server.post("/v1/responses", {"input": long}), 400, "maximum context length is 50")
        self.assertEqual((error["code"], error["param"]), ("context_length_exceeded", "input"))
        events = server.post("/v1/responses", {"input": long, "stream": True}).events()
        self.assertEqual([name for name, _ in events], ["response.created", "response.in_progress", "response.failed"])
        self.assertEqual(events[-1][1]["response"]["error"]["code"], "context_length_exceeded")
        self.assertEqual(events[-1][1]["response"]["status"], "failed")
        self.assertEqual([data["sequence_number"] for _, data in events], [0, 1, 2])

    # ---- The rest

    def test_the_fingerprint_is_the_servers(self):
        first = self.chat(max_tokens=1)["system_fingerprint"]
        self.assertRegex(first, "^fp_[0-9a-f]{12}$")
        self.assertEqual(self.complete("And", max_tokens=1)["system_fingerprint"], first)
        for _, chunk in self.chat(max_tokens=2, stream=True)[:-1]:
            self.assertEqual(chunk["system_fingerprint"], first)
        other = Server("--kv-dtype", "f32")  # changes the bits
        self.addCleanup(other.stop)
        reply = other.post("/v1/chat/completions", {"messages": SUM, "max_tokens": 1}).json
        self.assertNotEqual(reply["system_fingerprint"], first)

    def test_ignore_eos_goes_on_where_a_call_would_begin(self):
        # The bundled model calls the tool in the system text, even if no tool is offered.
        system = {"role": "system", "content": "", "tools": [WEATHER_TOOL]}
        messages = [system, {"role": "user", "content": "What is the weather in Paris?"}]
        stopped = self.chat(messages, max_tokens=90, tool_choice="none")
        self.assertLess(stopped["usage"]["completion_tokens"], 90)
        on = self.chat(messages, max_tokens=90, tool_choice="none", ignore_eos=True)
        self.assertEqual(on["usage"]["completion_tokens"], 90)
        self.assertEqual(on["choices"][0]["finish_reason"], "length")
        self.assertIn("tool_calls>", on["choices"][0]["message"]["content"])

    def test_custom_tools_take_a_text(self):
        tool = {"name": "run", "description": "Runs a command.", "format": {"type": "text"}}
        ask = {"messages": [{"role": "user", "content": "List the files."}], "tools": [{"type": "custom", "custom": tool}],
               "tool_choice": {"type": "custom", "custom": {"name": "run"}}, "max_tokens": 60, "stop_token_ids": [],
               "logit_bias": {}}
        reply = self.chat(**ask)["choices"][0]["message"]
        streamed = {}
        for _, chunk in self.chat(stream=True, **ask)[:-1]:
            for call in chunk["choices"][0]["delta"].get("tool_calls", []):
                found = streamed.setdefault(call["index"], {"type": None, "name": "", "input": ""})
                found["type"] = call.get("type", found["type"])
                found["name"] += call["custom"].get("name", "")
                found["input"] += call["custom"].get("input", "")
        self.assertTrue(streamed)
        self.assertEqual({f["type"] for f in streamed.values()}, {"custom"})
        for call in reply.get("tool_calls", []):
            self.assertEqual((call["type"], call["custom"]["name"]), ("custom", "run"))
            self.assertEqual(call["custom"]["input"], streamed[0]["input"])
        # The results of the calls are read.
        self.chat([*ask["messages"], {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "custom", "custom": {"name": "run", "input": "ls \"x\""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"}], tools=ask["tools"], max_tokens=2)
        body = {"input": "List the files.", "tools": [{"type": "custom", **tool}], "tool_choice": "required", "max_output_tokens": 60,
                "temperature": 0}
        whole = self.text(body, "/v1/responses")["output"]
        self.assertEqual([i["type"] for i in whole if "call" in i["type"]][:1], ["custom_tool_call"])
        named = self.text({**body, "tool_choice": {"type": "custom", "name": "run"}}, "/v1/responses")["output"]
        self.assertEqual([i["name"] for i in named if "call" in i["type"]][:1], ["run"])
        events = self.server.post("/v1/responses", {**body, "stream": True}).events()
        inputs = [data["input"] for name, data in events if name == "response.custom_tool_call_input.done"]
        self.assertEqual(inputs, [i["input"] for i in whole if i["type"] == "custom_tool_call"])

    def test_calls_without_arguments_and_refusals(self):
        user = {"role": "user", "content": "Now?"}

        def chat(arguments):
            call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
            return [user, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "5"}]

        self.assertEqual(self.prompt(chat("")), self.prompt(chat("{}")))
        self.assertNotEqual(self.prompt(chat("5")), self.prompt(chat("{}")))
        counts = []
        for arguments in ["", "{}"]:
            items = [user, {"type": "function_call", "call_id": "1", "name": "now", "arguments": arguments},
                     {"type": "function_call_output", "call_id": "1", "output": "5"}]
            reply = self.server.post("/v1/responses", {"input": items, "max_output_tokens": 1})
            counts.append(reply.json["usage"]["input_tokens"])
        self.assertEqual(*counts)
        refused = self.prompt([user, {"role": "assistant", "content": None, "refusal": "I will not."}, user])
        self.assertIn("I will not.", refused)

    def test_allowed_tools_hold_calls_to_some(self):
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
        ask = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [WEATHER_TOOL, other],
               "max_tokens": 120}
        calls = lambda reply: [c["function"]["name"] for c in reply["choices"][0]["message"].get("tool_calls", [])]
        free = self.chat(**ask)
        self.assertEqual(calls(free), ["get_weather"])
        choice = lambda mode, name: {"type": "allowed_tools", "allowed_tools": {
            "mode": mode, "tools": [{"type": "function", "function": {"name": name}}]}}
        held = self.chat(tool_choice=choice("auto", "get_time"), **ask)
        self.assertNotIn("get_weather", calls(held))
        self.assertEqual(held["usage"]["prompt_tokens"], free["usage"]["prompt_tokens"])  # all tools: KV is reused
        self.assertEqual(set(calls(self.chat(tool_choice=choice("required", "get_time"), **ask))), {"get_time"})
        self.refused(self.server.post("/v1/chat/completions", {**ask, "tool_choice": choice("auto", "fly")}), 400, "fly")
        note = {"type": "custom", "custom": {"name": "note"}}
        custom = self.chat(**{**ask, "tools": [WEATHER_TOOL, note]}, tool_choice={
            "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [note]}})
        self.assertEqual({c["custom"]["name"] for c in custom["choices"][0]["message"].get("tool_calls", [])} - {"note"}, set())
        # Tools that are not supported are ignored here, too.
        response = self.server.post("/v1/responses", {
            "input": "What is the weather in Paris?", "max_output_tokens": 120,
            "tools": [{"type": "function", **WEATHER_TOOL["function"]}, {"type": "function", **other["function"]}, {"type": "web_search"}],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "function", "name": "get_time"}, {"type": "web_search"}]}}).json
        self.assertEqual({i["name"] for i in response["output"] if i["type"] == "function_call"}, {"get_time"})


if __name__ == "__main__":
    main()
