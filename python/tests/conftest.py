"""Fixtures of the tests of the installed package. None of them looks into the source tree of the package."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import dsv4

PROMPT = "In the beginning"
GREEDY = dsv4.SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="session")
def llm():
    with dsv4.LLM(kv_budget="512MiB") as model:
        yield model


@pytest.fixture(scope="session")
def engine():
    with dsv4.Engine() as loaded:
        yield loaded


@pytest.fixture(scope="session")
def tokenizer():
    return dsv4.Tokenizer()


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a process of its own. Returns its standard output; fails if the status is another one."""

    def run(program, status=0, timeout=120, **env):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, **env})
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def repository():
    """The repository, for its documents and data. The driver of the tests sets it."""
    root = os.environ.get("DSV4_REPOSITORY")
    if not root:
        pytest.skip("DSV4_REPOSITORY is not set")
    return Path(root)
