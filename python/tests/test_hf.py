"""dsv4.hf.generate: the names of transformers."""

import numpy as np
import pytest

import dsv4
import dsv4.hf
from conftest import GREEDY, PROMPT


@pytest.fixture(scope="module")
def ids(tokenizer):
    return tokenizer.encode(PROMPT)


def test_greedy_equals_llm(engine, llm, ids):
    expected = ids + llm.generate(ids, GREEDY).token_ids
    assert dsv4.hf.generate([ids], model=engine, max_new_tokens=24) == [expected]
    assert dsv4.hf.generate(ids, model=engine, max_new_tokens=24) == expected
    out = dsv4.hf.generate(np.array([ids]), model=engine, max_new_tokens=24)
    assert out.dtype == np.int64 and out.tolist() == [expected]
    assert dsv4.hf.generate([ids], max_new_tokens=24) == [expected]  # the bundled model, which stays loaded


def test_a_batch_equals_rows_alone(engine, ids):
    rows = [ids, ids[:1], [*ids, 5, 6]]
    alone = [dsv4.hf.generate([row], model=engine, max_new_tokens=6)[0] for row in rows]
    assert dsv4.hf.generate(rows, model=engine, max_new_tokens=6) == alone
    width = max(map(len, rows))
    padded = np.array([[1] * (width - len(row)) + row for row in rows])
    mask = np.array([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    out = dsv4.hf.generate(padded, mask, model=engine, max_new_tokens=6)
    assert (out[:, :width] == padded).all()
    assert [row[len(row) - 6 :].tolist() for row in out] == [row[-6:] for row in alone]


def test_ended_rows_are_padded(engine, ids):
    first = dsv4.hf.generate([ids], model=engine, max_new_tokens=6)[0][len(ids) :]
    out = dsv4.hf.generate(np.array([ids, ids[::-1]]), model=engine, max_new_tokens=6, eos_token_id=first[1], pad_token_id=77)
    assert out[0, len(ids) :].tolist() == [*first[:2], 77, 77, 77, 77]


def test_sampling(engine, ids):
    def draw(**flags):
        return dsv4.hf.generate([ids], model=engine, max_new_tokens=8, do_sample=True, num_return_sequences=3, **flags)

    assert draw(seed=1) == draw(seed=1) != draw(seed=2)
    assert len(draw(seed=1)) == 3 and len({tuple(row) for row in draw(seed=1)}) > 1
    greedy = dsv4.hf.generate([ids], model=engine, max_new_tokens=8)
    assert draw(top_k=1) == greedy * 3


def test_scores(engine, ids):
    flags = dict(model=engine, max_new_tokens=5, output_scores=True, output_logits=True, return_dict_in_generate=True)
    greedy = dsv4.hf.generate(np.array([ids]), **flags)
    assert all((score == logit).all() for score, logit in zip(greedy.scores, greedy.logits))
    expected = engine.new_session().append(greedy.sequences[0, :-1], logits="all")[len(ids) - 1 :]
    assert (np.concatenate(greedy.logits) == expected).all()
    drawn = dsv4.hf.generate(np.array([ids]), do_sample=True, num_return_sequences=4, seed=5, top_k=7, top_p=0.8,
                             temperature=0.7, **flags)
    assert [score.shape for score in drawn.scores] == [(4, engine.vocab_size)] * 5
    for step, scores in enumerate(drawn.scores):
        assert ((scores > -np.inf).sum(axis=1) <= 7).all()
        chosen = drawn.sequences[:, len(ids) + step]
        assert (scores[np.arange(4), chosen] > -np.inf).all()


@pytest.mark.parametrize("flags", [{"num_return_sequences": 2}, {"max_new_tokens": 0}, {"input_ids": [[]]}, {"input_ids": []},
                                   {"input_ids": [[5, 6]], "attention_mask": [[1]]}])
def test_wrong_arguments(engine, ids, flags):
    with pytest.raises(dsv4.InvalidArgumentError):
        dsv4.hf.generate(**{"input_ids": [ids], "model": engine, **flags})
