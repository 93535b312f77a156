"""dsv4.lm_eval: lm-evaluation-harness has the same figures as over HTTP."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", exc_type=ImportError)
TASKS = {"dsv4_cloze": "acc,none", "dsv4_sums": "exact_match,none"}


@pytest.fixture(scope="module")
def harness(repository, tmp_path_factory):
    """Runs the harness. Returns {task: figure} and {task: results of the documents}."""
    folder = tmp_path_factory.mktemp("lm_eval")
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}

    def run(name, module, *arguments):
        out = folder / name
        done = subprocess.run([sys.executable, "-m", module, "--tasks", ",".join(TASKS), "--include_path", "bench/lm_eval",
                               "--output_path", out, "--log_samples", *arguments], cwd=repository, capture_output=True,
                              text=True, env={**os.environ, **offline}, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        (found,) = out.rglob("results_*.json")
        results = json.loads(found.read_text())["results"]
        samples = {}
        for task in TASKS:
            (file,) = out.rglob(f"samples_{task}_*.jsonl")
            samples[task] = {d["doc_id"]: d["filtered_resps"] for d in map(json.loads, file.read_text().splitlines())}
        return {task: results[task][figure] for task, figure in TASKS.items()}, samples

    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    program = Path(sys.executable).parent / "dsv4"
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as file:
        process = subprocess.Popen([program, "serve", "--port", "0"], stderr=file, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    yield int(found[1])
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)


def test_figures_equal_those_of_the_http_route(harness, server):
    route = (f"base_url=http://127.0.0.1:{server}/v1/completions,model=nano,tokenizer_backend=remote,num_concurrent=4,"
             "max_length=4096")
    expected, theirs = harness("route", "lm_eval", "--model", "local-completions", "--model_args", route)
    figures, ours = harness("package", "dsv4.lm_eval", "--model_args", "num_threads=2")
    assert figures == expected
    assert figures["dsv4_sums"] == 1 and 0.4 < figures["dsv4_cloze"] < 1
    assert ours["dsv4_sums"] == theirs["dsv4_sums"]
    for document, answers in theirs["dsv4_cloze"].items():
        for answer, mine in zip(answers, ours["dsv4_cloze"][document], strict=True):
            assert mine[1] == answer[1] and float(mine[0]) == pytest.approx(float(answer[0]), abs=1e-3)


def test_rolling_likelihood_is_the_sum_of_scores(tmp_path):
    import dsv4
    from dsv4.lm_eval import DSV4
    from lm_eval.api.instance import Instance

    with dsv4.LLM(kv_budget="256MiB") as llm:
        text = "In the beginning God created the heaven and the earth. " * 3
        requests = [Instance("loglikelihood_rolling", {}, (text,), 0)]
        whole = DSV4(llm=llm).loglikelihood_rolling(requests)[0]
        assert whole == pytest.approx(float(llm.score(text, add_bos=True).sum()), abs=1e-2)
        # Windows of few tokens know less of the text.
        assert DSV4(llm=llm, max_length=9).loglikelihood_rolling(requests)[0] < whole
        bos = DSV4(llm=llm, add_bos_token=True)
        assert bos.tok_encode("a")[0] == llm.tokenizer.bos_token_id != DSV4(llm=llm).tok_encode("a")[0]


def test_unknown_generation_arguments_are_refused():
    import dsv4
    from dsv4.lm_eval import DSV4
    from lm_eval.api.instance import Instance

    with dsv4.LLM(kv_budget="256MiB") as llm:
        with pytest.raises(dsv4.InvalidArgumentError, match="beams"):
            DSV4(llm=llm).generate_until([Instance("generate_until", {}, ("a", {"beams": 2}), 0)])
