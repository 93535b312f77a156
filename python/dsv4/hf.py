"""Generation as `transformers` names it: token ids in, token ids out.

>>> import dsv4.hf
>>> ids = dsv4.Tokenizer().encode("In the beginning")
>>> dsv4.hf.generate([ids], max_new_tokens=3)[0][len(ids):]
[274, 509, 283]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from . import _dsv4, _model
from ._errors import InvalidArgumentError
from ._params import SamplingParams

Model = Union[str, "os.PathLike[str]", _dsv4.Engine, None]
_engines: dict[tuple[int, str], _dsv4.Engine] = {}


@dataclass
class GenerateOutput:
    """The result of generate with return_dict_in_generate."""

    sequences: Any
    """[batch * num_return_sequences, prompt + new tokens], int64, padded on the right; lists are not padded."""
    scores: tuple[Any, ...] | None = None
    """With output_scores, of each step: float32 [batch * num_return_sequences, vocab_size] after temperature and
    filters (dropped tokens: -inf). Rows of sequences that have ended are 0."""
    logits: tuple[Any, ...] | None = None
    """With output_logits: the same before temperature and filters."""


@dataclass
class _Row:
    """A sequence that is being written."""

    session: _dsv4.Session
    sampler: _dsv4.Sampler
    ids: list[int]
    logits: Any
    ended: bool = False


def generate(
    input_ids: Any,
    attention_mask: Any = None,
    *,
    model: Model = None,
    max_new_tokens: int = 20,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 50,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    num_return_sequences: int = 1,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    output_scores: bool = False,
    output_logits: bool = False,
    return_dict_in_generate: bool = False,
    seed: int | None = None,
) -> Any:
    """Continues token ids, as `transformers`' generate does.

    input_ids: [batch, prompt]: a list of lists (of any lengths), or an array of int64 or int32 (NumPy, torch; others by
    DLPack). One row may be given as [prompt]. attention_mask: the same shape, 0 for padding; None: no padding.
    model: a folder, an Engine, or None (the bundled model). A model that was loaded here stays loaded.
    do_sample: False: greedy, and temperature, top_k, top_p and min_p have no effect. num_return_sequences: replies for
    each prompt, which needs do_sample. seed: row i draws with seed + i; None: new ones.
    eos_token_id: ids that end a row; None: the model's. pad_token_id: fills ended rows; None: the first end token.

    Returns the prompts with their continuations: lists for lists, otherwise an array of int64 of the kind of input_ids
    (torch: on its device), [batch * num_return_sequences, prompt + new], padded on the right. With
    return_dict_in_generate a GenerateOutput. Errors: InvalidArgumentError, ResourceExhaustedError.
    """
    if num_return_sequences < 1 or max_new_tokens < 1:
        raise InvalidArgumentError("num_return_sequences and max_new_tokens must be at least 1")
    if num_return_sequences > 1 and not do_sample:
        raise InvalidArgumentError("num_return_sequences > 1 needs do_sample=True: greedy replies are all the same")
    engine = model if isinstance(model, _dsv4.Engine) else _engine(model)
    prompts, width = _prompts(input_ids, attention_mask)
    params = SamplingParams(
        temperature=temperature if do_sample else 0.0,
        top_k=top_k if do_sample else 0,
        top_p=top_p if do_sample else 1.0,
        min_p=min_p if do_sample else 0.0,
        repetition_penalty=repetition_penalty,
    )
    ends = engine.eos_token_ids if eos_token_id is None else eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends)
    rows = _begin(engine, prompts, params, num_return_sequences, seed)
    scores: list[Any] = []
    logits: list[Any] = []
    for step in range(max_new_tokens):
        if output_logits:
            logits.append(_stack(rows, lambda row: row.logits))
        if output_scores:
            scores.append(_stack(rows, lambda row: processed(row.logits, params, row.ids)))
        live = [row for row in rows if not row.ended]
        for row in live:
            row.ids.append(row.sampler.sample(row.logits).token_id)
            row.ended = row.ids[-1] in ends
        live = [row for row in live if not row.ended]
        if not live or step + 1 == max_new_tokens:
            break
        found = engine.step([(row.session, row.ids[-1:]) for row in live])
        for row, values in zip(live, found):
            row.logits = values
    pad = pad_token_id if pad_token_id is not None else (ends[0] if ends else 0)
    new = [row.ids[len(prompt) :] for row, prompt in zip(rows, _repeat(prompts, num_return_sequences))]
    sequences = _like(input_ids, width, _repeat(_rows_of(input_ids), num_return_sequences), new, pad)
    if not return_dict_in_generate:
        return sequences
    return GenerateOutput(
        sequences,
        tuple(_tensor(input_ids, s) for s in scores) if output_scores else None,
        tuple(_tensor(input_ids, s) for s in logits) if output_logits else None,
    )


def processed(logits: Any, params: SamplingParams, ids: Sequence[int]) -> Any:
    """Returns the scores of a row [vocab_size]: after penalty, temperature and filters; dropped tokens are -inf."""
    import numpy as np

    scores = np.array(logits, dtype=np.float32)
    if params.repetition_penalty != 1:
        seen = np.unique(np.asarray(ids))
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / params.repetition_penalty, scores[seen] * params.repetition_penalty)
    if params.temperature == 0:
        return scores
    scores /= params.temperature
    order = np.argsort(-scores, kind="stable")
    kept = order[: params.top_k] if params.top_k > 0 else order
    probabilities = np.exp(scores[kept] - scores[kept[0]])
    probabilities /= probabilities.sum()
    if params.top_p < 1:
        kept = kept[: int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1]
        probabilities = probabilities[: len(kept)]
    kept = kept[probabilities >= params.min_p * probabilities[0]]
    filtered = np.full_like(scores, -np.inf)
    filtered[kept] = scores[kept]
    return filtered


def _engine(model: Any) -> _dsv4.Engine:
    """Returns the engine of a folder, which stays loaded. A forked child loads its own."""
    key = (os.getpid(), _model.folder(model))
    if key not in _engines:
        _engines[key] = _dsv4.Engine(model)
    return _engines[key]


def _begin(
    engine: _dsv4.Engine, prompts: list[list[int]], params: SamplingParams, copies: int, seed: int | None
) -> list[_Row]:
    """Reads each prompt once. Its copies continue from a snapshot."""
    from dataclasses import replace

    rows: list[_Row] = []
    for prompt in prompts:
        first = engine.new_session()
        logits = first.append(prompt)[0]
        snapshot = first.snapshot() if copies > 1 else None
        for copy in range(copies):
            own = replace(params, seed=None if seed is None else seed + len(rows))
            sampler = _dsv4.Sampler(own, engine.vocab_size)
            sampler.add_prompt(prompt)
            session = first if copy == 0 else engine.new_session(snapshot)
            rows.append(_Row(session, sampler, list(prompt), logits))
    return rows


def _repeat(items: list[Any], copies: int) -> list[Any]:
    return [item for item in items for _ in range(copies)]


def _stack(rows: list[_Row], values: Any) -> Any:
    import numpy as np

    return np.stack([np.zeros_like(row.logits) if row.ended else values(row) for row in rows])


def _array(values: Any) -> Any:
    """Returns an array of ints as NumPy's."""
    import numpy as np

    if isinstance(values, np.ndarray):
        return values
    return np.from_dlpack(values.cpu() if hasattr(values, "cpu") else values)


def _is_array(values: Any) -> bool:
    return hasattr(values, "__dlpack__")


def _rows_of(input_ids: Any) -> list[list[int]]:
    """Returns the rows as lists, with their padding."""
    rows = _array(input_ids).tolist() if _is_array(input_ids) else input_ids
    if len(rows) > 0 and not isinstance(rows[0], (list, tuple)) and not _is_array(rows[0]):
        rows = [rows]
    return [[int(id) for id in row] for row in rows]


def _prompts(input_ids: Any, attention_mask: Any) -> tuple[list[list[int]], int]:
    """Returns the prompts without padding, and the length of the longest row."""
    rows = _rows_of(input_ids)
    if attention_mask is not None:
        mask = _rows_of(attention_mask)
        if [len(row) for row in mask] != [len(row) for row in rows]:
            raise InvalidArgumentError("attention_mask has another shape than input_ids")
        prompts = [[id for id, keep in zip(row, kept) if keep] for row, kept in zip(rows, mask)]
    else:
        prompts = rows
    if not prompts or not all(prompts):
        raise InvalidArgumentError("input_ids has no tokens, or a row without tokens")
    return prompts, max(len(row) for row in rows)


def _like(input_ids: Any, width: int, begin: list[list[int]], new: list[list[int]], pad: int) -> Any:
    """Returns prompts and continuations in the form of input_ids."""
    if not _is_array(input_ids):
        joined = [a + b for a, b in zip(begin, new)]
        return joined if isinstance(input_ids[0], (list, tuple)) or _is_array(input_ids[0]) or len(joined) > 1 else joined[0]
    import numpy as np

    out = np.full((len(begin), width + max(len(row) for row in new)), pad, dtype=np.int64)
    for i, (a, b) in enumerate(zip(begin, new)):
        out[i, : width + len(b)] = a + b
    return _tensor(input_ids, out)


def _tensor(like: Any, array: Any) -> Any:
    """Returns a NumPy array as torch's if `like` is of torch, without a copy on the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.from_numpy(array).to(like.device)
    return array
