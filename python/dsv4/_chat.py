"""The model's own chat encoding."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _dsv4
from ._errors import InvalidArgumentError

Message = Mapping[str, Any]


def request_json(
    messages: Sequence[Message], thinking: bool, tools: Sequence[Message] | None, effort: str | None = None
) -> str:
    """Returns a request in the form that the C++ part reads."""
    if isinstance(messages, (str, bytes, Mapping)) or not all(isinstance(message, Mapping) for message in messages):
        raise InvalidArgumentError("messages must be a list of dicts, for example [{'role': 'user', 'content': 'Hi'}]")
    request: dict[str, Any] = {"messages": list(messages), "thinking": thinking}
    if tools:
        request["tools"] = list(tools)
    if effort is not None:
        request["reasoning_effort"] = effort
    try:
        return json.dumps(request, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"messages and tools must be JSON: {error}") from None


def render_chat(
    messages: Sequence[Message],
    thinking: bool = False,
    tools: Sequence[Message] | None = None,
    dialect: str = "auto",
    *,
    effort: str | None = None,
    model: str | os.PathLike[str] | None = None,
) -> str:
    """Returns the prompt text of a conversation in OpenAI's form, exactly as the official encoder writes it.

    thinking: the reply begins with reasoning. tools: functions that the model may call, in OpenAI's form.
    dialect: 'v4', 'v4-0731', or 'auto': what the encoder in the folder `model` has. effort: 'low', 'high', 'max'.
    Error: InvalidArgumentError, which names the message and the field.

    >>> render_chat([{"role": "user", "content": "Hi"}])
    '<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>'
    """
    return _dsv4._render_chat(request_json(messages, thinking, tools, effort), dialect, model)


def parse_output(text: str, thinking: bool = False) -> dict[str, Any]:
    """Splits the text that a model wrote into a message: reasoning_content, content and tool_calls. It accepts every
    text. thinking: the text begins inside the reasoning.

    >>> parse_output("27 + 48 = 75.</think>75", thinking=True)["content"]
    '75'
    """
    message: dict[str, Any] = json.loads(_dsv4._parse_output(text, thinking))
    return message
