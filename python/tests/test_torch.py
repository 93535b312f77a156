"""torch shares the memory of logits, and dsv4.hf takes its tensors."""

import numpy as np
import pytest

import dsv4
import dsv4.hf

torch = pytest.importorskip("torch")
IDS = [2597, 262, 2374]


def test_logits_are_shared(engine):
    logits = engine.new_session().append(IDS)
    tensor = torch.from_dlpack(logits)
    assert (tensor.data_ptr(), tensor.dtype) == (logits.ctypes.data, torch.float32)
    kept = logits.copy()
    del logits
    assert (tensor.numpy() == kept).all()


def test_tensors_of_ids_and_out(engine):
    expected = engine.new_session().append(IDS)
    out = torch.empty(1, engine.vocab_size)
    assert engine.new_session().append(torch.tensor(IDS), out=out) is out
    assert (out.numpy() == expected).all()
    with pytest.raises(TypeError):
        engine.new_session().append(torch.tensor([IDS]))


def test_generate(engine, llm):
    rows = dsv4.hf.generate(torch.tensor([IDS, IDS]), model=engine, max_new_tokens=5, output_scores=True,
                            return_dict_in_generate=True)
    assert isinstance(rows.sequences, torch.Tensor) and rows.sequences.dtype == torch.int64
    assert rows.sequences.tolist() == dsv4.hf.generate([IDS, IDS], model=engine, max_new_tokens=5)
    assert isinstance(rows.scores[0], torch.Tensor) and np.isfinite(rows.scores[0].numpy()).all()
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert dsv4.hf.generate(torch.tensor([IDS, IDS]), mask, model=engine, max_new_tokens=2).shape == (2, 5)
