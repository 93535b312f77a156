"""Shared by the tests of embedding: commands that must succeed, and the program of docs/library.md."""

import re
import subprocess


def run(*command, **options):
    """Runs a command and returns what it prints. Fails with its output."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise AssertionError("%s\n%s\n%s" % (" ".join(map(str, command)), result.stdout[-4000:], result.stderr[-4000:]))
    return result.stdout


def example(sources):
    """Returns the program in docs/library.md."""
    page = (sources / "docs/library.md").read_text(encoding="utf-8")
    return re.search(r"\n```cpp\n([^`]*)```\n", page)[1]


def expected_text(program, sources):
    """Returns the text that the program of docs/library.md writes, from `dsv4 generate`."""
    return run(program, "generate", "-p", "In the beginning", "--no-bos", "-n", 40, "--temperature", 0, cwd=sources)
