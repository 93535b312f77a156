"""LLM: generates text for many requests at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Union, overload

from . import _dsv4, _model
from ._chat import Message, request_json
from ._errors import InvalidArgumentError
from ._outputs import ChatOutput, Collector, GenerateOutput, StreamPiece
from ._params import SamplingParams

Prompt = Union[str, Sequence[int]]
_Output = TypeVar("_Output", bound=GenerateOutput)


class Stream(Iterator[StreamPiece]):
    """The pieces of a reply while it is written. Leaving the loop and dropping the stream cancels the request, as
    close() does. `output` is the whole reply after the last piece."""

    def __init__(self, ticket: _dsv4.Ticket, collector: Collector) -> None:
        self._ticket = ticket
        self._collector = collector
        self._pieces: list[StreamPiece] = []

    @property
    def output(self) -> GenerateOutput:
        return self._collector.output

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> StreamPiece:
        while not self._pieces:
            event = self._ticket.next()
            if event is None:
                raise StopIteration
            self._pieces = self._collector.add(event)
        return self._pieces.pop(0)

    def close(self) -> None:
        """Cancels the request."""
        self._ticket.cancel()
        self._pieces = []

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class LLM:
    """A model that generates text for many requests at the same time: continuous batching with a prefix cache. Any
    thread and any asyncio loop may call it.

    >>> llm = LLM()
    >>> llm.generate("In the beginning", SamplingParams(temperature=0, max_tokens=4)).text
    ' of the reign of'
    >>> llm.close()
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "cpu",
        num_threads: int = 0,
        kv_budget: int | str = 0,
        speculate: str = "auto",
        max_context: int = 0,
        max_running: int = 64,
        max_waiting: int = 1024,
        prefix_cache: bool = True,
        **engine_options: Any,
    ) -> None:
        """Loads a model. Ctrl-C stops it.

        model: folder of a checkpoint; None: the bundled model.
        device: 'cpu', 'cuda', 'cuda:1'; several GPUs: 'cuda:0,1'.
        num_threads: CPU threads; 0: one per core.
        kv_budget: memory of the requests and of the prefix cache, in bytes or as '2GiB'; 0: half of the free memory.
        speculate: drafter: 'auto', 'off', 'lookup', 'mtp', 'dspark'. It changes no token.
        max_context: tokens of prompt and reply; 0: the model's limit.
        max_running, max_waiting: maximum numbers of requests in the batch and in the queue.
        engine_options: others of Engine (kv_dtype, prefill_chunk, gpu_memory ...).

        Errors: as Engine; InvalidArgumentError (kv_budget is too small).
        """
        self._folder = _model.folder(model)
        self.tokenizer = _dsv4.Tokenizer(self._folder)
        engine = _dsv4.Engine(
            self._folder,
            device=device,
            num_threads=num_threads,
            max_context=max_context,
            speculate=speculate,  # type: ignore[arg-type]  # C++ checks the name
            **engine_options,
        )
        self._info = engine.info
        self._window = 2 * max_running
        self._service = _dsv4.Service(
            engine,
            self.tokenizer,
            kv_budget=_model.num_bytes(kv_budget),
            max_running=max_running,
            max_waiting=max_waiting,
            prefix_cache=prefix_cache,
        )
        self.default_params = SamplingParams.of_model(self._folder)

    # ---- Whole replies.

    @overload
    def generate(
        self, prompts: str | Sequence[int], params: SamplingParams | None = None, *, add_bos: bool = True
    ) -> GenerateOutput: ...
    @overload
    def generate(
        self,
        prompts: list[str] | list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_bos: bool = True,
    ) -> list[GenerateOutput]: ...
    @overload
    def generate(
        self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, *, add_bos: bool = True
    ) -> Any: ...

    def generate(
        self,
        prompts: Any,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_bos: bool = True,
    ) -> GenerateOutput | list[GenerateOutput]:
        """Continues a prompt, or each of a list of prompts. A list is one batch.

        prompts: a text, token ids [n] (a list, or an array of int32 or int64), or a list of such.
        params: one for all, or a list of the same length; None: the model's generation_config.json.
        add_bos: a text that has no begin token gets one.
        Returns one GenerateOutput, or a list in the order of the prompts.
        Errors: InvalidArgumentError (names the field; a prompt that is empty or too long), ResourceExhaustedError.
        Ctrl-C cancels all and raises KeyboardInterrupt.
        """
        if _is_prompt(prompts):
            if isinstance(params, Sequence):
                raise InvalidArgumentError("params is a list but prompts is one prompt: pass one SamplingParams")
            return self._run([self._request(prompts, params, add_bos)], GenerateOutput)[0]
        every = _params_for(params, len(prompts))
        return self._run([self._request(p, q, add_bos) for p, q in zip(prompts, every)], GenerateOutput)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        thinking: bool = False,
        tools: Sequence[Message] | None = None,
        effort: str | None = None,
    ) -> ChatOutput: ...
    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        thinking: bool = False,
        tools: Sequence[Message] | None = None,
        effort: str | None = None,
    ) -> list[ChatOutput]: ...

    def chat(
        self,
        messages: Any,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        thinking: bool = False,
        tools: Sequence[Message] | None = None,
        effort: str | None = None,
    ) -> ChatOutput | list[ChatOutput]:
        """Replies to a conversation in OpenAI's form, or to each of a list of conversations.

        messages: [{"role": "user", "content": "..."}, ...].
        thinking: the reply begins with reasoning (ChatOutput.reasoning). effort: 'low', 'high', 'max'.
        tools: functions that the model may call, in OpenAI's form; the calls are in ChatOutput.tool_calls.
        Special tokens in the messages are ordinary text. Errors: as generate.
        """
        if len(messages) == 0 or isinstance(messages, (str, Mapping)) or isinstance(messages[0], Mapping):
            if isinstance(params, Sequence):
                raise InvalidArgumentError("params is a list but messages is one conversation: pass one SamplingParams")
            return self._run([self._chat_request(messages, params, thinking, tools, effort)], ChatOutput)[0]
        every = _params_for(params, len(messages))
        requests = [self._chat_request(m, p, thinking, tools, effort) for m, p in zip(messages, every)]
        return self._run(requests, ChatOutput)

    def score(self, prompt: Prompt, *, add_bos: bool = False) -> Any:
        """Returns the log-probability of each token of a text after the ones before it: float32 [tokens - 1], natural
        logarithms. prompt: text or token ids. add_bos: the text gets a begin token first.
        Errors: InvalidArgumentError (fewer than two tokens).
        """
        import numpy

        request = self._request(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0), add_bos)
        if len(request["prompt"]) < 2:
            raise InvalidArgumentError("score needs at least two tokens, because the first one has no probability")
        output = self._run([request], GenerateOutput)[0]
        assert output.prompt_logprobs is not None
        return numpy.array([token.logprob for token in output.prompt_logprobs], dtype=numpy.float32)

    # ---- Pieces of replies.

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, add_bos: bool = True) -> Stream:
        """Returns an iterator over the pieces of a reply, each a str (StreamPiece). Leaving the loop and dropping the
        iterator cancels the request. Arguments and errors: as generate.

            for piece in llm.stream("In the beginning"):
                print(piece, end="", flush=True)
        """
        return self._stream(self._request(prompt, params, add_bos))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        thinking: bool = False,
        tools: Sequence[Message] | None = None,
        effort: str | None = None,
    ) -> Stream:
        """As stream, for a conversation. StreamPiece.kind says what a piece is; Stream.output is a ChatOutput."""
        return self._stream(self._chat_request(messages, params, thinking, tools, effort))

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, add_bos: bool = True
    ) -> AsyncIterator[StreamPiece]:
        """As stream, for asyncio. Cancelling the task cancels the request."""
        return self._astream(self._request(prompt, params, add_bos))

    def astream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        thinking: bool = False,
        tools: Sequence[Message] | None = None,
        effort: str | None = None,
    ) -> AsyncIterator[StreamPiece]:
        """As stream_chat, for asyncio."""
        return self._astream(self._chat_request(messages, params, thinking, tools, effort))

    # ---- The model.

    @property
    def info(self) -> dict[str, Any]:
        """As Engine.info."""
        return dict(self._info)

    def stats(self) -> dict[str, int]:
        """Returns numbers of requests (open, running, waiting), of bytes (kv_used_bytes, kv_kept_bytes,
        kv_budget_bytes) and of tokens since the start (prompt_tokens, generated_tokens, prefix_queries,
        prefix_hits)."""
        return self._service.stats()

    def close(self) -> None:
        """Ends all requests and frees the model at once."""
        self._service.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- Inside.

    def _request(self, prompt: Prompt, params: SamplingParams | None, add_bos: bool) -> dict[str, Any]:
        fields = (params or self.default_params).request()
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            bos = self.tokenizer.bos_token_id
            fields["prompt"] = [bos, *ids] if add_bos and bos >= 0 and ids[:1] != [bos] else ids
        else:
            fields["prompt"] = prompt
        if len(fields["prompt"]) == 0:
            raise InvalidArgumentError("the prompt has no tokens: give a text, or set add_bos")
        return fields

    def _chat_request(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None,
        thinking: bool,
        tools: Sequence[Message] | None,
        effort: str | None,
    ) -> dict[str, Any]:
        json_text = request_json(messages, thinking, tools, effort)
        text, ranges, functions = _dsv4._render_served(json_text, "auto", self._folder)
        fields = (params or self.default_params).request()
        return fields | {"text": text, "ranges": ranges, "tools": functions, "chat": True, "thinking": thinking}

    def _run(self, requests: list[dict[str, Any]], kind: type[_Output]) -> list[_Output]:
        """Runs requests together. If one fails, cancels the others."""
        tickets: list[_dsv4.Ticket] = []
        outputs: list[_Output] = []
        try:
            for i, request in enumerate(requests):
                while len(tickets) < min(i + self._window, len(requests)):
                    tickets.append(self._service.submit(requests[len(tickets)]))
                collector = _collector(request)
                while (event := tickets[i].next()) is not None:
                    collector.add(event)
                assert isinstance(collector.output, kind)
                outputs.append(collector.output)
        finally:
            for ticket in tickets[len(outputs) :]:
                ticket.cancel()
        return outputs

    def _stream(self, request: dict[str, Any]) -> Stream:
        return Stream(self._service.submit(request, bounded=True), _collector(request))

    async def _astream(self, request: dict[str, Any]) -> AsyncIterator[StreamPiece]:
        loop = asyncio.get_running_loop()
        ticket = self._service.submit(request, bounded=True)
        collector = _collector(request)
        try:
            while not ticket.ended:
                event = ticket.poll()
                if event is None:
                    await _readable(loop, ticket.fileno())
                    continue
                for piece in collector.add(event):
                    yield piece
        finally:
            ticket.cancel()


async def _readable(loop: asyncio.AbstractEventLoop, file: int) -> None:
    """Waits until there are events; a short sleep if there is no descriptor."""
    if file < 0:
        return await asyncio.sleep(0.01)
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(file, set_ready)
    try:
        await ready
        os.read(file, 8)
    finally:
        loop.remove_reader(file)


def _collector(request: dict[str, Any]) -> Collector:
    return Collector(request.get("chat", False), request["top_logprobs"] >= 0, request["prompt_logprobs"] >= 0)


def _is_prompt(prompts: Any) -> bool:
    """Whether this is one prompt: a text, or token ids."""
    if isinstance(prompts, str):
        return True
    if getattr(prompts, "ndim", None) is not None:
        return bool(prompts.ndim == 1)
    return len(prompts) > 0 and hasattr(prompts[0], "__index__") and getattr(prompts[0], "ndim", 0) == 0


def _params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidArgumentError(f"params has {len(params)} elements for {count} prompts: give one for each, or one for all")
    return params
