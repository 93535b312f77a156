#!/usr/bin/env python3
"""litellm and lm-evaluation-harness against a live server. They are installed once from PyPI into build/suites-venv. If
they are missing and there is no network, the test is skipped."""

import clients_venv

clients_venv.enter(clients_venv.SUITES, "suites-venv")

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # so that it does not use the network

import litellm

from support import ROOT, SLOWNESS, SUM, Server, ServerTestCase, main


class LiteLlm(ServerTestCase):
    FLAGS = ["--max-prompt", "300", "--default-thinking", "off"]
    LONG = [{"role": "user", "content": "word " * 600}]

    def ask(self, model, messages=SUM, **fields):
        root = "http://127.0.0.1:%d" % self.server.port
        base = root if model.startswith("anthropic/") else root + "/v1"
        return litellm.completion(model=model, api_base=base, api_key="none", messages=messages, temperature=0, max_tokens=30,
                                  num_retries=0, **fields)

    def test_replies_whole_and_streamed_over_both_apis(self):
        for model in ["openai/nano", "hosted_vllm/nano", "anthropic/nano"]:
            with self.subTest(model=model):
                self.assertEqual(self.ask(model).choices[0].message.content, "27 + 48 = 75.")
                pieces = [chunk.choices[0].delta.content or "" for chunk in self.ask(model, stream=True)]
                self.assertEqual("".join(pieces), "27 + 48 = 75.")

    def test_a_prompt_that_is_too_long_is_told_as_such(self):
        for model in ["openai/nano", "hosted_vllm/nano", "anthropic/nano"]:
            with self.subTest(model=model), self.assertRaises(litellm.ContextWindowExceededError):
                self.ask(model, self.LONG)

    def test_other_errors_are_not(self):
        with self.assertRaises(litellm.BadRequestError) as caught:
            self.ask("openai/nano", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}])
        self.assertNotIsInstance(caught.exception, litellm.ContextWindowExceededError)


class LmEval(unittest.TestCase):
    def test_a_small_task(self):
        server = Server()
        self.addCleanup(server.stop)
        with tempfile.TemporaryDirectory() as folder:
            arguments = "base_url=http://127.0.0.1:%d/v1/completions,model=nano,tokenizer_backend=remote,num_concurrent=4,max_length=4096"
            subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "dsv4_cloze,dsv4_sums",
                            "--include_path", str(ROOT / "bench" / "lm_eval"), "--limit", "8", "--output_path", folder,
                            "--model_args", arguments % server.port],
                           check=True, capture_output=True, timeout=400 * SLOWNESS,
                           env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": folder}, cwd=ROOT)
            (found,) = Path(folder).rglob("results_*.json")
            results = json.loads(found.read_text())["results"]
        value = lambda task, metric: next(v for k, v in results[task].items() if k.split(",")[0] == metric)
        self.assertEqual(value("dsv4_sums", "exact_match"), 1)
        self.assertGreater(value("dsv4_cloze", "acc"), 0.3)


if __name__ == "__main__":
    main()
