#!/usr/bin/env python3
"""The official openai and anthropic packages against a live server. They are installed once from PyPI into
build/clients-venv. If they are missing and there is no network, the test is skipped."""

import clients_venv

clients_venv.enter()

import anthropic
import openai

from support import SUM, WEATHER, WEATHER_TOOL, ServerTestCase, main, wait_for

PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
RESULT = '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}'
TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
GREEDY = {"temperature": 0}  # the package of 2026 no longer has a parameter for it
RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER}


class OpenAi(ServerTestCase):
    FLAGS = ["--api-key", "key", "--max-queue", "2", "--max-concurrent", "1", "--strict-model"]

    def client(self, **options):
        options = {"api_key": "key", "max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.server.port, **options)

    def create(self, messages=SUM, **fields):
        return self.client().chat.completions.create(model="nano", messages=messages, temperature=0, **fields)

    def test_models(self):
        self.assertEqual([m.id for m in self.client().models.list()], ["nano"])
        self.assertEqual(self.client().models.retrieve("nano").id, "nano")

    def test_chat_with_reasoning(self):
        reply = self.create()
        message = reply.choices[0].message
        self.assertEqual(message.content, "27 + 48 = 75.")
        self.assertIn("write 5", message.reasoning_content)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)
        plain = self.create(reasoning_effort="none", logprobs=True, top_logprobs=2, n=2, seed=3)
        self.assertEqual(len(plain.choices), 2)
        self.assertEqual("".join(e.token for e in plain.choices[0].logprobs.content), plain.choices[0].message.content)

    def test_stream_accumulated_by_the_package(self):
        with self.client().chat.completions.stream(model="nano", messages=SUM, temperature=0,
                                                   stream_options={"include_usage": True}) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertIn("content.delta", events)
        self.assertEqual(final.choices[0].message.content, "27 + 48 = 75.")
        self.assertGreater(final.usage.completion_tokens, 10)

    def test_tools_round_trip(self):
        for streamed in [False, True]:
            if streamed:
                with self.client().chat.completions.stream(model="nano", messages=PARIS, tools=[WEATHER_TOOL], temperature=0) as s:
                    message = s.get_final_completion().choices[0].message
            else:
                message = self.create(PARIS, tools=[WEATHER_TOOL]).choices[0].message
            (call,) = message.tool_calls
            self.assertEqual(call.function.name, "get_weather")
            self.assertIn("Paris", call.function.arguments)
            again = self.create([*PARIS, message.model_dump(exclude_none=True),
                                 {"role": "tool", "tool_call_id": call.id, "content": RESULT}], tools=[WEATHER_TOOL])
            self.assertIn("18", again.choices[0].message.content)
        forced = self.create([{"role": "user", "content": "Hello"}], tools=[WEATHER_TOOL], tool_choice="required", max_tokens=200)
        self.assertEqual(forced.choices[0].finish_reason, "tool_calls")

    def test_completions(self):
        reply = self.client().completions.create(model="nano", prompt=["And it came", "In the"], max_tokens=4, temperature=0,
                                                 logprobs=1, echo=True)
        self.assertEqual(len(reply.choices), 2)
        self.assertIsNone(reply.choices[0].logprobs.token_logprobs[0])
        text = "".join(c.choices[0].text for c in
                       self.client().completions.create(model="nano", prompt="And it came", max_tokens=4, temperature=0, stream=True))
        self.assertTrue(reply.choices[0].text.endswith(text))

    def test_responses(self):
        client = self.client()
        reply = client.responses.create(model="nano", input=SUM[0]["content"], temperature=0)
        self.assertEqual(reply.output_text, "27 + 48 = 75.")
        self.assertEqual([item.type for item in reply.output], ["reasoning", "message"])
        with client.responses.stream(model="nano", input=SUM[0]["content"], temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual(final.output_text, "27 + 48 = 75.")
        self.assertEqual(kinds[-1], "response.completed")
        first = client.responses.create(model="nano", input=PARIS, tools=[RESPONSES_TOOL], temperature=0)
        (call,) = [item for item in first.output if item.type == "function_call"]
        second = client.responses.create(
            model="nano", temperature=0, tools=[RESPONSES_TOOL],
            input=[*PARIS, *[item.model_dump(exclude_none=True) for item in first.output],
                   {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}])
        self.assertIn("18", second.output_text)

    def test_errors_by_class(self):
        with self.assertRaises(openai.AuthenticationError):
            self.client(api_key="wrong").models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(top_p=3)
        self.assertEqual(caught.exception.param, "top_p")
        self.assertTrue(caught.exception.request_id)
        with self.assertRaises(openai.NotFoundError):
            self.client().chat.completions.create(model="gpt-4", messages=SUM)
        with self.assertRaises(openai.APITimeoutError):
            self.client(timeout=0.3).completions.create(model="nano", prompt="a", max_tokens=100000, extra_body={"ignore_eos": True})
        self.wait_until_idle()

    def wait_until_idle(self):
        def idle():
            page = self.server.get("/metrics", Authorization="Bearer key").body.decode()
            return 'vllm:num_requests_running{model_name="nano",engine="0"} 0' in page and 'waiting{model_name="nano",engine="0"} 0' in page

        wait_for(idle, "the sequences of clients that left are still there")

    def test_a_full_queue_is_tried_again(self):
        self.wait_until_idle()
        streams = [self.client().completions.create(model="nano", prompt="a", max_tokens=100000, stream=True,
                                                    extra_body={"ignore_eos": True}) for _ in range(3)]
        with self.assertRaises(openai.RateLimitError):
            self.create(max_tokens=1)
        for stream in streams:
            stream.close()
        self.wait_until_idle()
        self.assertEqual(self.client(max_retries=2).completions.create(model="nano", prompt="a", max_tokens=1).usage.completion_tokens, 1)


class Anthropic(ServerTestCase):
    FLAGS = ["--api-key", "key"]

    def client(self, **options):
        options = {"api_key": "key", "max_retries": 0, "timeout": 120, **options}
        return anthropic.Anthropic(base_url="http://127.0.0.1:%d" % self.server.port, **options)

    def create(self, messages=SUM, **fields):
        return self.client().messages.create(**{"model": "nano", "max_tokens": 300, "extra_body": GREEDY, "messages": messages, **fields})

    def test_message_and_stream(self):
        for fields, types in [({}, ["text"]), ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
                                               ["thinking", "text"])]:
            whole = self.create(**fields)
            self.assertEqual([b.type for b in whole.content], types)
            self.assertEqual((whole.content[-1].text, whole.stop_reason), ("27 + 48 = 75.", "end_turn"))
            with self.client().messages.stream(**{"model": "nano", "max_tokens": 300, "extra_body": GREEDY, "messages": SUM, **fields}) as s:
                text = "".join(s.text_stream)
                final = s.get_final_message()
            self.assertEqual(text, "27 + 48 = 75.")
            self.assertEqual([b.type for b in final.content], types)
            self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools_with_thinking(self):
        fields = {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
        first = self.create(PARIS, **fields)
        call = first.content[-1]
        self.assertEqual((call.type, call.input["city"], first.stop_reason), ("tool_use", "Paris", "tool_use"))
        second = self.create([*PARIS, {"role": "assistant", "content": first.content},
                              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]}], **fields)
        self.assertIn("18", second.content[-1].text)
        with self.client().messages.stream(**{"model": "nano", "extra_body": GREEDY, "messages": PARIS, **fields}) as s:
            final = s.get_final_message()
        self.assertEqual(final.content[-1].input, call.input)

    def test_count_tokens_and_models(self):
        counted = self.client().messages.count_tokens(model="nano", messages=PARIS, tools=[TOOL]).input_tokens
        usage = self.create(PARIS, tools=[TOOL], max_tokens=1).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)
        self.assertEqual([m.id for m in self.client().models.list()], ["nano"])

    def test_errors_by_class(self):
        with self.assertRaises(anthropic.AuthenticationError):
            self.create_with_key("wrong")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create([])
        self.assertIn("messages", str(caught.exception))
        # Reading this prompt takes longer than the timeout on any machine; the answer to SUM may be faster.
        long = [{"role": "user", "content": "And it came to pass. " * 1500}]
        with self.assertRaises(anthropic.APITimeoutError):
            self.client(timeout=0.05).messages.create(model="nano", max_tokens=5000, messages=long)

    def create_with_key(self, key):
        return self.client(api_key=key).messages.create(model="nano", max_tokens=1, messages=SUM)


if __name__ == "__main__":
    main()
