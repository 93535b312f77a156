"""Stubs: mypy accepts the package and a program that uses it, and refuses a wrong one."""

import subprocess
import sys
from pathlib import Path

import pytest

import dsv4

PROGRAM = """
import dsv4
import dsv4.hf

llm = dsv4.LLM(num_threads=1)
one: dsv4.GenerateOutput = llm.generate("a", dsv4.SamplingParams(temperature=0))
many: list[dsv4.GenerateOutput] = llm.generate(["a", "b"])
reply: dsv4.ChatOutput = llm.chat([{"role": "user", "content": "Hi"}])
text: str = one.text + reply.reasoning + "".join(llm.stream("a"))
session: dsv4.Session = dsv4.Engine().new_session()
logits = session.append([1, 2], logits="all")
length: int = len(session)
ids: list[int] = dsv4.Tokenizer().encode(text)
"""
WRONG = {'llm.generate("a").txt': "attr-defined", 'dsv4.Engine(devise="cpu")': "call-arg",
         'session.append([1], logits="most")': "arg-type", 'ids + "a"': "operator"}


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("mypy")

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", *arguments],
                              capture_output=True, text=True, cwd=folder)

    return run


def test_py_typed_and_stub():
    folder = Path(dsv4.__file__).parent
    assert (folder / "py.typed").exists()
    stub = (folder / "_dsv4.pyi").read_text()
    assert "arg0" not in stub and "class Session" in stub


def test_mypy_accepts_the_package(mypy):
    done = mypy("-p", "dsv4", "--ignore-missing-imports")
    assert done.returncode == 0, done.stdout


def test_mypy_checks_programs(mypy, tmp_path):
    (tmp_path / "right.py").write_text(PROGRAM)
    done = mypy(tmp_path / "right.py")
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.py").write_text(PROGRAM + "\n".join(WRONG) + "\n")
    errors = [line for line in mypy(tmp_path / "wrong.py").stdout.splitlines() if "error:" in line]
    assert [line.split("[")[-1].rstrip("]") for line in errors] == list(WRONG.values()), errors
