"""What LLM returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of a request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens from the prefix cache."""
    completion_tokens: int = 0
    """Drawn tokens, the end token and reasoning included."""
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    """Accepted draft tokens of the completion."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability (natural logarithm), before temperature, penalties and filters."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)
    """The most likely tokens in its place: (token id, log-probability), the most likely first."""


@dataclass
class GenerateOutput:
    """A reply."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Drawn tokens, without end and stop tokens."""
    finish_reason: str | None = None
    """'stop' (end token, stop text or stop token), 'length' (max_tokens or context), 'tool_calls', 'cancelled'."""
    stop_reason: str | int | None = None
    """The stop text or the end token that ended it."""
    logprobs: list[TokenLogprob] | None = None
    """With SamplingParams.logprobs: of token_ids."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """With SamplingParams.prompt_logprobs: of the prompt's tokens from the second one on."""
    usage: Usage = field(default_factory=Usage)


@dataclass
class ChatOutput(GenerateOutput):
    """A reply in a chat. `text` is the content."""

    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls in OpenAI's form: {"id", "type": "function", "function": {"name", "arguments"}}, arguments as JSON text."""

    @property
    def content(self) -> str:
        """The same as text."""
        return self.text

    def message(self) -> dict[str, Any]:
        """Returns the reply as a message, to append to the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


class StreamPiece(str):
    """A piece of a reply: a str that also has the tokens that it came from.

    kind: 'text'; in a chat 'reasoning', 'content', 'call' (the name of a function), 'arguments' (JSON text).
    token_ids: the tokens of the step. finish_reason: of the last piece; else None.
    """

    kind: str
    token_ids: list[int]
    finish_reason: str | None

    def __new__(
        cls, text: str, kind: str = "text", token_ids: list[int] | None = None, finish_reason: str | None = None
    ) -> StreamPiece:
        piece = super().__new__(cls, text)
        piece.kind = kind
        piece.token_ids = token_ids or []
        piece.finish_reason = finish_reason
        return piece

    @property
    def text(self) -> str:
        """The piece as a plain str."""
        return str(self)


class Collector:
    """Joins the events of a request."""

    def __init__(self, chat: bool, logprobs: bool, prompt_logprobs: bool) -> None:
        self.output: GenerateOutput = ChatOutput() if chat else GenerateOutput()
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._read = False
        if logprobs:
            self.output.logprobs = []
        if prompt_logprobs:
            self.output.prompt_logprobs = []

    def add(self, event: dict[str, Any]) -> list[StreamPiece]:
        """Adds an event. Returns its pieces of text; the last piece of a reply may be empty."""
        out = self.output
        ids = [token[0] for token in event["tokens"]]
        out.token_ids += ids
        if out.logprobs is not None:
            out.logprobs += [TokenLogprob(*token) for token in event["tokens"]]
        if out.prompt_logprobs is not None:
            first = 0 if self._read else 1  # the first token has no probability
            out.prompt_logprobs += [TokenLogprob(*token) for token in event["prompt"][first:]]
            self._read = self._read or bool(event["prompt"])
        pieces = [("text", event["text"])] if event["text"] else []
        for kind, index, text in event["deltas"]:
            self._add_delta(kind, index, text)
            if kind != "call_end":
                pieces.append((kind, text))
        self._texts.append(event["text"])
        if event["finish"] is not None:
            self._end(event)
            pieces = pieces or [("content" if isinstance(out, ChatOutput) else "text", "")]
        last = len(pieces) - 1
        return [
            StreamPiece(text, kind, ids if i == 0 else [], out.finish_reason if i == last else None)
            for i, (kind, text) in enumerate(pieces)
        ]

    def _add_delta(self, kind: str, index: int, text: str) -> None:
        out = self.output
        assert isinstance(out, ChatOutput)
        if kind == "reasoning":
            self._reasoning.append(text)
        elif kind == "content":
            self._texts.append(text)
        elif kind == "call":
            function = {"name": text, "arguments": ""}
            out.tool_calls.append({"id": f"call_{index}", "type": "function", "function": function})
        elif kind == "arguments":
            out.tool_calls[index]["function"]["arguments"] += text

    def _end(self, event: dict[str, Any]) -> None:
        out = self.output
        out.text = "".join(self._texts)
        if isinstance(out, ChatOutput):
            out.reasoning = "".join(self._reasoning)
        out.finish_reason = event["finish"]
        out.stop_reason = event["matched_stop"] or event["end_id"]
        names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "drafted_tokens")
        out.usage = Usage(**{name: event[name] for name in names})
