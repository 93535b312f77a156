"""Engine, Session, Snapshot and Sampler: shapes, bits, errors, memory, threads."""

import gc
import threading
import time

import numpy as np
import pytest

import dsv4

IDS = [2597, 262, 2374, 509]


def test_shapes(engine):
    session = engine.new_session()
    assert session.append(IDS).shape == (1, engine.vocab_size)
    every = session.append(IDS, logits="all")
    assert (every.shape, every.dtype) == ((4, engine.vocab_size), np.float32)
    assert session.append([1], logits="none") is None
    assert len(session) == 9 and session.tokens == [*IDS, *IDS, 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_arrays_of_ids(engine, dtype):
    expected = engine.new_session().append(IDS)
    assert (engine.new_session().append(np.array(IDS, dtype)) == expected).all()
    spread = np.zeros(8, dtype)
    spread[::2] = IDS
    assert (engine.new_session().append(spread[::2]) == expected).all()
    assert (engine.new_session().append(range(2597, 2598)) == engine.new_session().append([2597])).all()


@pytest.mark.parametrize("ids", [np.array([1.5]), np.zeros((2, 2), np.int64), np.array([1], np.int8), "ab", [None], 5])
def test_wrong_types_of_ids(engine, ids):
    with pytest.raises(TypeError):
        engine.new_session().append(ids)


def test_rows_do_not_depend_on_the_call(engine):
    together = engine.new_session().append(IDS, logits="all")
    session = engine.new_session()
    alone = np.concatenate([session.append([id]) for id in IDS])
    assert (together == alone).all()


def test_logits_are_not_copied(engine):
    logits = engine.new_session().append(IDS)
    assert not logits.flags.owndata and logits.flags.writeable
    other = np.from_dlpack(logits)
    assert np.shares_memory(logits, other)
    kept = other.copy()
    del logits
    gc.collect()
    assert (other == kept).all()


def test_out_is_filled(engine):
    expected = engine.new_session().append(IDS, logits="all")
    for out in (np.empty_like(expected), np.empty(expected.size, np.float32)):
        assert engine.new_session().append(IDS, logits="all", out=out) is out
        assert (out.reshape(expected.shape) == expected).all()


def test_wrong_out(engine):
    session = engine.new_session()
    size = engine.vocab_size
    with pytest.raises(dsv4.InvalidArgumentError, match=str(size)):
        session.append(IDS, out=np.empty((2, size), np.float32))
    read_only = np.empty((1, size), np.float32)
    read_only.flags.writeable = False
    for out in (np.empty((1, size)), np.empty((1, 2 * size), np.float32)[:, ::2], read_only, [0.0] * size):
        with pytest.raises(TypeError):
            session.append(IDS, out=out)
    assert len(session) == 0


@pytest.mark.parametrize("ids", [[4096], [-1], [], [2**40]])
def test_wrong_ids_append_nothing(engine, ids):
    session = engine.new_session()
    session.append(IDS)
    with pytest.raises(dsv4.InvalidArgumentError):
        session.append(ids)
    assert session.tokens == IDS


def test_names_of_logits(engine):
    with pytest.raises(dsv4.InvalidArgumentError, match="'first'"):
        engine.new_session().append(IDS, logits="first")


def test_truncate(engine):
    session = engine.new_session()
    expected = session.append(IDS)
    session.append([7, 8, 9])
    session.truncate(3)
    assert (session.append(IDS[3:]) == expected).all()
    with pytest.raises(dsv4.InvalidArgumentError):
        session.truncate(100)
    session.truncate(0)
    assert len(session) == 0 and (session.append(IDS) == expected).all()


def test_snapshots_continue_with_the_same_bits(engine, tmp_path):
    session = engine.new_session()
    session.append(list(range(5, 605)), logits="none")
    snapshot = session.snapshot()
    data = bytes(snapshot)
    snapshot.save(tmp_path / "a.dsv4kv")
    assert len(snapshot) == 600
    expected = session.append(IDS)
    for again in (snapshot, engine.read_snapshot(data), engine.load_snapshot(tmp_path / "a.dsv4kv")):
        assert (engine.new_session(again).append(IDS) == expected).all()


def test_snapshots_of_other_engines(engine):
    session = engine.new_session()
    expected = session.append(IDS)
    snapshot = session.snapshot()
    with dsv4.Engine() as other:
        with pytest.raises(dsv4.InvalidArgumentError, match="bytes"):
            other.new_session(snapshot)
        moved = other.new_session(other.read_snapshot(bytes(snapshot)))
        assert (moved.append([5]) == session.append([5])).all() and expected.size
    data = bytearray(bytes(snapshot))
    data[len(data) // 2] ^= 1
    with pytest.raises(dsv4.DataLossError):
        engine.read_snapshot(bytes(data))
    with pytest.raises(dsv4.Error):
        engine.read_snapshot(b"no snapshot")
    with pytest.raises(dsv4.InvalidArgumentError):
        engine.new_session().snapshot()


def test_step_equals_sessions_alone(engine):
    prompts = [IDS, IDS[:2], [7]]
    alone = [engine.new_session() for _ in prompts]
    expected = np.concatenate([s.append(p) for s, p in zip(alone, prompts)])
    sessions = [engine.new_session() for _ in prompts]
    assert (engine.step(list(zip(sessions, prompts))) == expected).all()
    rows = engine.step([(s, [9]) for s in sessions])
    assert (rows == np.concatenate([s.append([9]) for s in alone])).all()
    assert engine.step([(sessions[0], [1, 2]), (sessions[1], [3])], logits="all").shape == (3, engine.vocab_size)


def test_wrong_steps(engine):
    session = engine.new_session()
    with pytest.raises(dsv4.InvalidArgumentError):
        engine.step([(session, IDS), (session, IDS)])
    with dsv4.Engine() as other, pytest.raises(dsv4.InvalidArgumentError, match="another engine"):
        other.step([(session, IDS)])
    assert len(session) == 0


def test_sampler(engine):
    logits = engine.new_session().append(IDS)
    greedy = dsv4.Sampler(dsv4.SamplingParams(temperature=0, logprobs=2), engine.vocab_size).sample(logits)
    assert greedy.token_id == int(logits.argmax())
    log_sum = float(np.log(np.exp(logits - logits.max()).sum()) + logits.max())
    assert greedy.logprob == pytest.approx(float(logits.max()) - log_sum, abs=1e-4)
    assert greedy.top[0] == (greedy.token_id, greedy.logprob) and len(greedy.top) == 2
    drawn = [[dsv4.Sampler(dsv4.SamplingParams(seed=s), engine.vocab_size).sample(logits).token_id for s in range(20)]
             for _ in range(2)]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 3
    with pytest.raises(dsv4.InvalidArgumentError, match="top_p"):
        dsv4.Sampler(dsv4.SamplingParams(top_p=2), engine.vocab_size)
    with pytest.raises(dsv4.InvalidArgumentError):
        dsv4.Sampler(dsv4.SamplingParams(), 7).sample(logits)


@pytest.mark.parametrize("options, error", [
    ({"model": "/no/such/folder"}, dsv4.NotFoundError), ({"device": "tpu"}, dsv4.InvalidArgumentError),
    ({"speculate": "magic"}, dsv4.InvalidArgumentError), ({"kv_dtype": "int3"}, dsv4.InvalidArgumentError),
    ({"max_context": 1 << 60}, dsv4.InvalidArgumentError), ({"num_threads": -1}, dsv4.InvalidArgumentError)])
def test_wrong_options(options, error):
    with pytest.raises(error) as caught:
        dsv4.Engine(**options)
    assert "\n" not in str(caught.value)


def test_errors_are_also_pythons(engine):
    for error, base in [(dsv4.NotFoundError, FileNotFoundError), (dsv4.InvalidArgumentError, ValueError),
                        (dsv4.ResourceExhaustedError, MemoryError), (dsv4.ForkError, RuntimeError)]:
        assert issubclass(error, base) and issubclass(error, dsv4.Error)
    with dsv4.Engine(max_context=16) as small:
        session = small.new_session()
        with pytest.raises(MemoryError):
            session.append(list(range(5, 25)))
        assert len(session) == 0


def test_closed_engines_say_so():
    engine = dsv4.Engine()
    session = engine.new_session()
    session.append(IDS)
    snapshot = session.snapshot()
    engine.close()
    engine.close()
    for call in (lambda: session.append(IDS), engine.new_session, lambda: bytes(snapshot), lambda: session.tokens):
        with pytest.raises(dsv4.InvalidArgumentError, match="closed"):
            call()
    assert len(session) == 4


def test_sessions_free_their_memory(engine):
    before = engine.kv_bytes
    sessions = [engine.new_session() for _ in range(3)]
    for session in sessions:
        session.append(IDS)
    assert engine.kv_bytes > before
    del session, sessions
    gc.collect()
    assert engine.kv_bytes == before


def test_other_threads_run_during_a_call(engine):
    ticks, end = [], threading.Event()

    def tick():
        while not end.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    engine.new_session().append(list(range(5, 1505)), logits="none")
    took = time.monotonic() - begin
    end.set()
    thread.join()
    during = [t for t in ticks if begin < t < begin + took]
    assert len(during) > took * 20  # a call that kept the GIL would leave none


def test_threads_share_an_engine(engine):
    expected = {n: engine.new_session().append(IDS[:n]) for n in range(1, 5)}
    wrong = []

    def work(n):
        for _ in range(10):
            session = engine.new_session()
            if not (session.append(IDS[:n]) == expected[n]).all():
                wrong.append(n)
            del session  # freed while others compute

    threads = [threading.Thread(target=work, args=(1 + i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_info(engine):
    assert engine.info["vocab_size"] == engine.vocab_size == 4096
    assert engine.info["max_context"] == engine.max_context > 1000
    assert engine.eos_token_ids == [1] and engine.info["weight_bytes"] > 10**7
