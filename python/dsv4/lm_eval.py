"""dsv4 as a model of lm-evaluation-harness (pip install "dsv4[lm_eval]"), without a server.

    python -m dsv4.lm_eval --tasks dsv4_cloze --include_path bench/lm_eval --model_args device=cpu

runs the harness with the model "dsv4". `--model local-completions` against `dsv4 serve` has the same results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ._errors import InvalidArgumentError
from ._llm import LLM
from ._outputs import TokenLogprob
from ._params import SamplingParams


@register_model("dsv4")
class DSV4(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """The harness calls loglikelihood, loglikelihood_rolling and generate_until.

    model, device, kv_budget and other arguments: as LLM. llm: an LLM that is used instead.
    add_bos_token: every context begins with the begin token. The default, False, is as in the HTTP route.
    max_length: tokens of context and continuation; longer ones lose their first tokens. max_gen_toks: of a reply.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        llm: LLM | None = None,
        add_bos_token: bool = False,
        max_length: int = 4096,
        max_gen_toks: int = 256,
        batch_size: int | str = 64,
        max_batch_size: int | None = None,
        **llm_options: Any,
    ) -> None:
        super().__init__()
        self._llm = llm or LLM(model, max_running=int(batch_size) if str(batch_size).isdigit() else 64, **llm_options)
        self._tokenizer = self._llm.tokenizer
        self._add_bos = add_bos_token
        self._max_gen_toks = max_gen_toks
        self.max_length = min(max_length, self._llm.info["max_context"])

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> DSV4:
        """Makes the model from --model_args and the harness's own options. The harness's device is a GPU if none is
        given, so only --model_args sets it."""
        own = {name: v for name, v in (additional_config or {}).items() if v is not None and name != "device"}
        return cls(**(own | arg_dict))

    @property
    def eot_token_id(self) -> int:
        return int(self._tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Stands for an empty context. The model was trained with BOS there."""
        bos = int(self._tokenizer.bos_token_id)
        return bos if bos >= 0 else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return "dsv4"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids: list[int] = self._tokenizer.encode(string)
        add = self._add_bos if add_special_tokens is None else add_special_tokens
        bos = self._tokenizer.bos_token_id
        return [bos, *ids] if add and bos >= 0 and ids[:1] != [bos] else ids

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Each request: (key of the cache or None, token ids of the context, token ids of the continuation)."""
        if not requests:
            return []
        params = SamplingParams(max_tokens=0, prompt_logprobs=1)
        prompts = [[*context, *continuation][-self.max_length :] for _, context, continuation in requests]
        # Equal beginnings follow each other, so that the prefix cache finds them.
        order = sorted(range(len(prompts)), key=lambda i: prompts[i])
        outputs = self._llm.generate([prompts[i] for i in order], params)
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        for i, output in zip(order, outputs):
            key, _, continuation = requests[i]
            count = min(len(continuation), len(prompts[i]) - 1)
            scored: list[TokenLogprob] = (output.prompt_logprobs or [])[-count:] if count > 0 else []
            greedy = all(token.logprob == max(logprob for _, logprob in token.top) for token in scored)
            results[i] = (sum(token.logprob for token in scored), greedy)
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, results[i])
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        results = []
        for (text,) in (request.args for request in requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            parts = [(None, *utils.make_disjoint_window(window)) for window in windows]
            results.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(parts)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), results[-1])
        return results

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        params = [self._params(dict(request.args[1])) for request in requests]
        room = [max(1, self.max_length - max(p.max_tokens, 0)) for p in params]
        outputs = self._llm.generate([ids[-n:] for ids, n in zip(prompts, room)], params) if prompts else []
        for request, output in zip(requests, outputs):
            self.cache_hook.add_partial("generate_until", request.args, output.text)
        return [output.text for output in outputs]

    def _params(self, fields: dict[str, Any]) -> SamplingParams:
        """Returns the generation_kwargs of a task as parameters."""
        until = fields.pop("until", None) or []
        fields.pop("do_sample", None)
        max_tokens = fields.pop("max_gen_toks", None) or fields.pop("max_tokens", None) or self._max_gen_toks
        known = {name: fields.pop(name) for name in ("temperature", "top_p", "top_k", "min_p", "seed") if name in fields}
        if fields:
            raise InvalidArgumentError(f"generation_kwargs has unknown fields: {', '.join(sorted(fields))}")
        known.setdefault("temperature", 0.0)
        known.setdefault("seed", 1234)
        return SamplingParams(stop=[until] if isinstance(until, str) else [s for s in until if s], max_tokens=int(max_tokens), **known)


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    if "--model" not in sys.argv:
        sys.argv[1:1] = ["--model", "dsv4"]
    cli_evaluate()


if __name__ == "__main__":
    main()
