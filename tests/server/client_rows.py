#!/usr/bin/env python3
"""The clients of client_table.py that PyPI has. Runs in the environment of one group, against a server at URL:

    client_rows.py GROUP URL [CLIENT...]

Prints a line of JSON for each client of the group: its name, version, and for each cell null if the client works, or
what went wrong ("none": the client does not have it). Each client asks a question, streams the answer, and lets the
model call a function. A module is imported only by its client, because each group has other packages.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from client_base import ANSWER, CALLED, FUNCTION, PARIS, QUESTION, SCHEMA, TOOL, Client, get_weather, results

ROOT = Path(__file__).resolve().parents[2]


class OpenAi(Client):
    NAME, PACKAGE, GROUP, NOTE = "openai", "openai", "frameworks", "Chat Completions and Responses"

    def __init__(self, url):
        super().__init__(url)
        import openai
        self.client = openai.OpenAI(base_url=self.v1, api_key="none", max_retries=0)

    def create(self, messages, **fields):
        return self.client.chat.completions.create(model="nano", temperature=0, messages=messages, **fields)

    def chat(self):
        reply = self.client.responses.create(model="nano", input=QUESTION, temperature=0)
        self.accept(reply.output_text)
        return self.create([{"role": "user", "content": QUESTION}]).choices[0].message.content

    def stream(self):
        with self.client.responses.stream(model="nano", input=QUESTION, temperature=0) as events:
            self.accept("".join(event.delta for event in events if event.type == "response.output_text.delta"))
        for chunk in self.create([{"role": "user", "content": QUESTION}], stream=True):
            yield chunk.choices[0].delta.content or ""

    def tools(self):
        messages = [{"role": "user", "content": PARIS}]
        message = self.create(messages, tools=[TOOL]).choices[0].message
        messages += [message.model_dump(exclude_none=True), *results(message.tool_calls)]
        return self.create(messages, tools=[TOOL]).choices[0].message.content


class Anthropic(Client):
    NAME, PACKAGE, GROUP, NOTE = "anthropic", "anthropic", "frameworks", "Messages"

    def __init__(self, url):
        super().__init__(url)
        import anthropic
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.fields = {"model": "nano", "max_tokens": 500, "extra_body": {"temperature": 0}}

    def chat(self):
        return self.client.messages.create(messages=[{"role": "user", "content": QUESTION}], **self.fields).content[-1].text

    def stream(self):
        with self.client.messages.stream(messages=[{"role": "user", "content": QUESTION}], **self.fields) as stream:
            yield from stream.text_stream

    def tools(self):
        tool = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
        messages = [{"role": "user", "content": PARIS}]
        first = self.client.messages.create(messages=messages, tools=[tool], **self.fields)
        call = first.content[-1]
        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)}]}]
        return self.client.messages.create(messages=messages, tools=[tool], **self.fields).content[-1].text


class LiteLlm(Client):
    NAME, PACKAGE, GROUP = "LiteLLM", "litellm", "frameworks"
    NOTE = "`openai/`, `hosted_vllm/`, `deepseek/` and `anthropic/`"
    PREFIXES = ("openai/", "hosted_vllm/", "deepseek/", "anthropic/")

    def complete(self, prefix, messages, **fields):
        import litellm
        return litellm.completion(model=prefix + "nano", api_base=self.url if prefix == "anthropic/" else self.v1, api_key="none",
                                  messages=messages, temperature=0, max_tokens=500, num_retries=0, **fields)

    def chat(self):
        for prefix in self.PREFIXES:
            text = self.complete(prefix, [{"role": "user", "content": QUESTION}]).choices[0].message.content
            self.accept(text)
        return text

    def stream(self):
        for prefix in self.PREFIXES:
            pieces = [chunk.choices[0].delta.content or "" for chunk in
                      self.complete(prefix, [{"role": "user", "content": QUESTION}], stream=True)]
            self.accept("".join(pieces))
        return pieces

    def tools(self):
        for prefix in self.PREFIXES:
            CALLED.clear()
            messages = [{"role": "user", "content": PARIS}]
            message = self.complete(prefix, messages, tools=[TOOL]).choices[0].message
            messages += [message.model_dump(exclude_none=True), *results(message.tool_calls)]
            text = self.complete(prefix, messages, tools=[TOOL]).choices[0].message.content
            assert "18" in text, "the answer after the call is %r" % text
        return text


class LangChain(Client):
    """The calls of every chat model of LangChain."""

    def chat(self):
        return self.model.invoke(QUESTION).text

    def stream(self):
        return [chunk.text for chunk in self.model.stream(QUESTION)]

    def tools(self):
        from langchain_core.messages import HumanMessage
        from langchain_core.tools import tool
        function = tool(get_weather)
        model, messages = self.model.bind_tools([function]), [HumanMessage(PARIS)]
        messages.append(model.invoke(messages))
        messages += [function.invoke(call) for call in messages[-1].tool_calls]
        return model.invoke(messages).text


class LangChainOpenAi(LangChain):
    NAME, PACKAGE, GROUP, NOTE = "langchain-openai", "langchain-openai", "frameworks", "`ChatOpenAI`"

    def __init__(self, url):
        super().__init__(url)
        from langchain_openai import ChatOpenAI
        self.model = ChatOpenAI(model="nano", base_url=self.v1, api_key="none", temperature=0, max_retries=0)


class LangChainAnthropic(LangChain):
    NAME, PACKAGE, GROUP, NOTE = "langchain-anthropic", "langchain-anthropic", "frameworks", "`ChatAnthropic`"

    def __init__(self, url):
        super().__init__(url)
        from langchain_anthropic import ChatAnthropic
        self.model = ChatAnthropic(model_name="nano", base_url=url, api_key="none", temperature=0, max_tokens=500, max_retries=0)


class LangChainDeepSeek(LangChain):
    NAME, PACKAGE, GROUP, NOTE = "langchain-deepseek", "langchain-deepseek", "frameworks", "`ChatDeepSeek`, with reasoning"

    def __init__(self, url):
        super().__init__(url)
        from langchain_deepseek import ChatDeepSeek
        self.model = ChatDeepSeek(model="nano", api_base=self.v1, api_key="none", temperature=0, max_retries=0)

    def chat(self):
        message = self.model.invoke(QUESTION)
        assert message.additional_kwargs["reasoning_content"], "the reasoning is missing"
        return message.text


class OpenAiAgents(Client):
    NAME, PACKAGE, GROUP = "openai-agents", "openai-agents", "frameworks"
    NOTE = "Responses and Chat Completions; `Runner` calls the function"

    def __init__(self, url):
        super().__init__(url)
        import agents
        agents.set_tracing_disabled(True)
        self.models = [agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel]

    def agent(self, model, **fields):
        import agents
        import openai
        client = openai.AsyncOpenAI(base_url=self.v1, api_key="none", max_retries=0)
        return agents.Agent(name="a", model=model("nano", client), model_settings=agents.ModelSettings(temperature=0), **fields)

    async def run(self, model, text, **fields):
        import agents
        return (await agents.Runner.run(self.agent(model, **fields), text)).final_output

    def chat(self):
        texts = [asyncio.run(self.run(model, QUESTION)) for model in self.models]
        self.accept(texts[0])
        return texts[1]

    def stream(self):
        import agents

        async def pieces(model):
            result = agents.Runner.run_streamed(self.agent(model), QUESTION)
            return [event.data.delta async for event in result.stream_events()
                    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]

        found = [asyncio.run(pieces(model)) for model in self.models]
        self.accept("".join(found[0]))
        return found[1]

    def tools(self):
        import agents
        function = agents.function_tool(get_weather, strict_mode=False)
        texts = [asyncio.run(self.run(model, PARIS, tools=[function])) for model in self.models]
        assert CALLED.pop(0) == "Paris" and "18" in texts[0], texts
        return texts[1]


class PydanticAi(Client):
    NAME, PACKAGE, GROUP, NOTE = "pydantic-ai", "pydantic-ai-slim", "frameworks", "`Agent` calls the function"

    def agent(self, **fields):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider
        model = OpenAIChatModel("nano", provider=OpenAIProvider(base_url=self.v1, api_key="none"))
        return Agent(model, model_settings={"temperature": 0}, **fields)

    def chat(self):
        return self.agent().run_sync(QUESTION).output

    def stream(self):
        async def pieces():
            async with self.agent().run_stream(QUESTION) as result:
                return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

        return asyncio.run(pieces())

    def tools(self):
        return self.agent(tools=[get_weather]).run_sync(PARIS).output


class Haystack(Client):
    NAME, PACKAGE, GROUP, NOTE = "haystack-ai", "haystack-ai", "frameworks", "`OpenAIChatGenerator`; `Agent` calls the function"

    def generator(self, **fields):
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.utils import Secret
        return OpenAIChatGenerator(model="nano", api_base_url=self.v1, api_key=Secret.from_token("none"), max_retries=0,
                                   generation_kwargs={"temperature": 0}, **fields)

    def chat(self, **fields):
        from haystack.dataclasses import ChatMessage
        return self.generator(**fields).run([ChatMessage.from_user(QUESTION)])["replies"][0].text

    def stream(self):
        pieces = []
        self.accept(self.chat(streaming_callback=lambda chunk: pieces.append(chunk.content or "")))
        return pieces

    def tools(self):
        from haystack.components.agents import Agent
        from haystack.dataclasses import ChatMessage
        from haystack.tools import create_tool_from_function
        agent = Agent(chat_generator=self.generator(), tools=[create_tool_from_function(get_weather)])
        return agent.run([ChatMessage.from_user(PARIS)])["messages"][-1].text


class Dspy(Client):
    NAME, PACKAGE, GROUP, NOTE = "dspy", "dspy", "frameworks", "`dspy.LM`"

    def model(self, **fields):
        import dspy
        return dspy.LM("openai/nano", api_base=self.v1, api_key="none", temperature=0, max_tokens=500, cache=False, num_retries=0, **fields)

    def chat(self):
        (reply,) = self.model()(QUESTION)
        return reply if isinstance(reply, str) else reply["text"]

    def tools(self):
        messages = [{"role": "user", "content": PARIS}]
        (reply,) = self.model()(messages=messages, tools=[TOOL])
        calls = [call.model_dump() for call in reply["tool_calls"]]
        messages += [{"role": "assistant", "tool_calls": calls}, *results(reply["tool_calls"])]
        (reply,) = self.model()(messages=messages, tools=[TOOL])
        return reply if isinstance(reply, str) else reply["text"]


class Smolagents(Client):
    NAME, PACKAGE, GROUP, NOTE = "smolagents", "smolagents", "frameworks", "`OpenAIModel`; its agents send results as text"

    def messages(self, text):
        return [{"role": "user", "content": [{"type": "text", "text": text}]}]

    def model(self):
        from smolagents import OpenAIModel
        return OpenAIModel("nano", api_base=self.v1, api_key="none", temperature=0)

    def chat(self):
        return self.model().generate(self.messages(QUESTION)).content

    def stream(self):
        return [delta.content or "" for delta in self.model().generate_stream(self.messages(QUESTION))]

    def tools(self):
        from smolagents import tool
        function = tool(get_weather)
        (result,) = results(self.model().generate(self.messages(PARIS), tools_to_call_from=[function]).tool_calls)
        return result["content"]


class SemanticKernel(Client):
    NAME, PACKAGE, GROUP, NOTE = "semantic-kernel", "semantic-kernel", "frameworks", "calls the function itself"

    def setUp(self):
        import openai
        from semantic_kernel import Kernel
        from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
        from semantic_kernel.contents import ChatHistory
        service = OpenAIChatCompletion(ai_model_id="nano", async_client=openai.AsyncOpenAI(base_url=self.v1, api_key="none", max_retries=0))
        return service, ChatHistory(), OpenAIChatPromptExecutionSettings(temperature=0), Kernel()

    def chat(self):
        service, history, settings, _ = self.setUp()
        history.add_user_message(QUESTION)
        return str(asyncio.run(service.get_chat_message_content(history, settings)))

    def stream(self):
        service, history, settings, _ = self.setUp()
        history.add_user_message(QUESTION)

        async def pieces():
            return [str(chunk) async for chunk in service.get_streaming_chat_message_content(history, settings)]

        return asyncio.run(pieces())

    def tools(self):
        from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
        from semantic_kernel.functions import kernel_function
        service, history, settings, kernel = self.setUp()
        history.add_user_message(PARIS)
        kernel.add_function("home", kernel_function(get_weather))
        settings.function_choice_behavior = FunctionChoiceBehavior.Auto()
        return str(asyncio.run(service.get_chat_message_content(history, settings, kernel=kernel)))


class HuggingFace(Client):
    NAME, PACKAGE, GROUP, NOTE = "huggingface_hub", "huggingface-hub", "frameworks", "`InferenceClient`"

    def __init__(self, url):
        super().__init__(url)
        from huggingface_hub import InferenceClient
        self.client = InferenceClient(base_url=self.v1, api_key="none")

    def complete(self, messages, **fields):
        return self.client.chat_completion(messages, model="nano", temperature=0, max_tokens=500, **fields)

    def chat(self):
        return self.complete([{"role": "user", "content": QUESTION}]).choices[0].message.content

    def stream(self):
        for chunk in self.complete([{"role": "user", "content": QUESTION}], stream=True):
            yield chunk.choices[0].delta.content or ""

    def tools(self):
        messages = [{"role": "user", "content": PARIS}]
        message = self.complete(messages, tools=[TOOL]).choices[0].message
        messages += [dict(message), *results(message.tool_calls)]
        return self.complete(messages, tools=[TOOL]).choices[0].message.content


class Instructor(Client):
    NAME, PACKAGE, GROUP, NOTE = "instructor", "instructor", "structured", "typed replies through a schema and through a call"

    def ask(self, mode, **fields):
        import instructor
        import openai
        import pydantic

        class Weather(pydantic.BaseModel):
            city: Literal["Paris", "Rome"]

        client = openai.OpenAI(base_url=self.v1, api_key="none", max_retries=0)
        client = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        create = client.chat.completions.create_partial if fields.get("stream") else client.chat.completions.create
        return create(model="nano", response_model=Weather, messages=[{"role": "user", "content": PARIS}], temperature=0,
                      max_tokens=500, max_retries=0, **fields)

    def accept(self, text):
        assert text in ("Paris", "Rome"), text

    def chat(self):
        return self.ask("JSON_SCHEMA").city

    def check_stream(self):
        self.accept(list(self.ask("JSON_SCHEMA", stream=True))[-1].city)

    stream = chat

    def check_tools(self):
        self.accept(self.ask("TOOLS").city)

    tools = chat


class LlamaIndex(Client):
    NAME, PACKAGE, GROUP, NOTE = "llama-index", "llama-index-llms-openai-like", "structured", "`OpenAILike`"

    def model(self):
        from llama_index.llms.openai_like import OpenAILike
        return OpenAILike(model="nano", api_base=self.v1, api_key="none", temperature=0, max_retries=0, context_window=65536,
                          is_chat_model=True, is_function_calling_model=True)

    def messages(self, text):
        from llama_index.core.llms import ChatMessage
        return [ChatMessage(role="user", content=text)]

    def chat(self):
        return self.model().chat(self.messages(QUESTION)).message.content

    def stream(self):
        return [chunk.delta or "" for chunk in self.model().stream_chat(self.messages(QUESTION))]

    def tools(self):
        from llama_index.core.llms import ChatMessage
        from llama_index.core.tools import FunctionTool
        model, function, messages = self.model(), FunctionTool.from_defaults(get_weather), self.messages(PARIS)
        reply = model.chat_with_tools([function], chat_history=messages)
        (call,) = model.get_tool_calls_from_response(reply)
        result = get_weather(**call.tool_kwargs)
        messages += [reply.message, ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id})]
        return model.chat_with_tools([function], chat_history=messages).message.content


class Aider(Client):
    """The program with its settings for DeepSeek's models. The bundled model cannot follow its prompt: reasoning and a
    reply are enough."""

    NAME, PACKAGE, GROUP = "aider", "aider-chat", "aider"
    NOTE = "`--model deepseek/deepseek-chat`: a system message comes last; edits are text"

    def run(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "hello.py").write_text("print(1)\n")
            (folder / "settings.yml").write_text("- name: aider/extra_params\n  extra_params:\n    max_tokens: 100\n")
            # Without this it continues a reply that ends at max_tokens, again and again.
            (folder / "metadata.json").write_text(json.dumps({"deepseek/deepseek-chat": {
                "max_tokens": 8192, "max_input_tokens": 65536, "litellm_provider": "deepseek", "mode": "chat"}}))
            done = subprocess.run(
                [str(Path(sys.prefix) / "bin" / "aider"), "--model", "deepseek/deepseek-chat", "--message", QUESTION, "--no-git",
                 "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes",
                 "--no-pretty", "--map-tokens", "0", "--model-settings-file", "settings.yml",
                 "--model-metadata-file", "metadata.json", "--verbose", *flags],
                cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
                env={"PATH": os.environ["PATH"], "HOME": str(folder), "DEEPSEEK_API_KEY": "none", "DEEPSEEK_API_BASE": self.v1,
                     "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANG": "C.UTF-8"})
        return done.stdout + done.stderr

    def accept(self, text):
        assert "\nSYSTEM" in text.split("\nUSER")[-1], "no system message comes last"
        reply = text.split('\n    "timeout": ')[-1]
        assert "THINKING" in reply and "ANSWER" in reply.split("THINKING")[-1], "the reply is %r" % reply[-300:]

    def chat(self):
        return self.run("--no-stream")

    def stream(self):
        return [self.run("--stream")]

    def check_stream(self):
        self.accept(self.run("--stream"))


class LmEval(Client):
    NAME, PACKAGE, GROUP, NOTE = "lm-evaluation-harness", "lm-eval", "suites", "`local-completions`, tokenizer over HTTP"

    def check_chat(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "dsv4_sums", "--limit", "4",
                 "--include_path", str(ROOT / "bench" / "lm_eval"), "--output_path", folder, "--model_args",
                 "base_url=%s/completions,model=nano,tokenizer_backend=remote,num_concurrent=4,max_length=4096" % self.v1],
                cwd=ROOT, capture_output=True, text=True, timeout=400,
                env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": folder})
            assert done.returncode == 0, done.stderr[-300:]
            (found,) = Path(folder).rglob("results_*.json")
            assert json.loads(found.read_text())["results"]["dsv4_sums"]["exact_match,none"] == 1, found.read_text()[:300]

    chat = check_chat


def classes(of=Client):
    """The clients of this file, in its order."""
    for found in of.__subclasses__():
        if found.GROUP:
            yield found
        yield from classes(found)


def main():
    group, url, *names = sys.argv[1:]
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # so that it does not use the network
    for client in classes():
        if client.GROUP == group and (not names or client.NAME in names):
            print(json.dumps(client(url).row()), flush=True)


if __name__ == "__main__":
    main()
