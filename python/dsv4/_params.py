"""How tokens are drawn, and when a reply ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn, and when a reply ends. The defaults draw from the model's own distribution.

    >>> SamplingParams(temperature=0, max_tokens=40, stop=["\\n"]).max_tokens
    40
    """

    temperature: float = 1.0
    """0: greedy, the most likely token."""
    top_k: int = 0
    """Keeps the k most likely tokens; 0 or -1: all."""
    top_p: float = 1.0
    """Keeps the smallest set of tokens with at least this probability, above 0 and up to 1."""
    min_p: float = 0.0
    """Drops tokens less likely than min_p times the most likely one, 0 to 1."""
    repetition_penalty: float = 1.0
    """Above 0: divides the logits of tokens in prompt and reply (positive ones; negative ones are multiplied)."""
    presence_penalty: float = 0.0
    """-2 to 2: subtracted once from the logit of a token in the reply."""
    frequency_penalty: float = 0.0
    """-2 to 2: subtracted for each occurrence in the reply."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids; -inf bans a token."""
    seed: int | None = None
    """The same seed, prompt and parameters give the same tokens. None: a new one each time."""
    max_tokens: int = 256
    """Maximum number of tokens of the reply; -1: up to the context limit."""
    min_tokens: int = 0
    """The reply does not end by itself before this number of tokens."""
    stop: str | Sequence[str] = ()
    """Texts that end the reply. They are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the reply, in addition to the model's own."""
    include_stop_str_in_output: bool = False
    """True: the stop text is part of the reply."""
    ignore_eos: bool = False
    """True: the model's end token does not end the reply."""
    skip_special_tokens: bool = True
    """True: special tokens have no text."""
    logprobs: int | None = None
    """Log-probabilities of the reply's tokens, and of the n most likely tokens in their places; None: none."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    json_schema: str | Mapping[str, Any] | None = None
    """The reply is JSON that follows this schema."""
    regex: str | None = None
    """The reply matches this regular expression."""

    def request(self) -> dict[str, Any]:
        """Returns the fields as the engine names them."""
        fields: dict[str, Any] = {
            "temperature": float(self.temperature),
            "top_k": max(self.top_k, 0) if self.top_k == -1 else self.top_k,
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
            "repeat_penalty": float(self.repetition_penalty),
            "presence_penalty": float(self.presence_penalty),
            "frequency_penalty": float(self.frequency_penalty),
            "logit_bias": [(int(id), float(bias)) for id, bias in (self.logit_bias or {}).items()],
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "stops": [self.stop] if isinstance(self.stop, str) else list(self.stop),
            "stop_ids": list(self.stop_token_ids),
            "include_stop": self.include_stop_str_in_output,
            "skip_special": self.skip_special_tokens,
            "top_logprobs": -1 if self.logprobs is None else self.logprobs,
            "prompt_logprobs": -1 if self.prompt_logprobs is None else self.prompt_logprobs,
        }
        if self.seed is not None:
            fields["seed"] = self.seed % 2**64
        if self.json_schema is not None:
            fields["json_schema"] = self.json_schema if isinstance(self.json_schema, str) else json.dumps(self.json_schema)
        if self.regex is not None:
            fields["regex"] = self.regex
        return fields

    @staticmethod
    def of_model(model: str) -> SamplingParams:
        """Returns the defaults in the folder's generation_config.json."""
        from ._dsv4 import _default_sampling

        return SamplingParams(**_default_sampling(model))
