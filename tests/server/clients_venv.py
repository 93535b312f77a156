"""The packages from PyPI that tests of `dsv4 serve` use, in folders of build/."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
PACKAGES = ["openai==3.52.0", "anthropic==2.11.0", "jsonschema==4.26.0"]


# Larger packages, each for only one test.
SUITES = ["litellm==1.83.0", "lm_eval[api]==0.4.13"]

# The environments of client_table.py: the packages of different groups need different versions of the same package.
TABLE = {
    "frameworks": ["openai==3.52.0", "anthropic==2.11.0", "litellm==1.110.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10",
                   "langchain-deepseek==1.1.1", "openai-agents==0.24.0", "pydantic-ai-slim[openai]==2.68.0", "haystack-ai==3.4.1",
                   "dspy==3.4.1", "smolagents[openai]==1.26.0", "semantic-kernel==1.45.0", "huggingface-hub==2.4.0"],
    "structured": ["instructor==1.17.0", "llama-index-llms-openai-like==0.8.1"],
    "aider": ["aider-chat==0.86.2"],
    "suites": SUITES,
}
UV = "uv==0.13.9"  # installs the environments of the table in a tenth of pip's time


def missing(packages):
    """The packages that this Python does not have in the required version. Their modules may have other names."""
    def has(package):
        name, version = re.match(r"([^=[]+)(?:\[.*\])?(?:==(.*))?$", package).groups()
        try:
            return version in (None, metadata.version(name))
        except metadata.PackageNotFoundError:
            return False

    return [package for package in packages if not has(package)]


class Unreachable(Exception):
    """The packages are not installed and cannot be fetched."""


def make(packages, folder, flags=(), uv=False):
    """Returns the Python of build/FOLDER, where the packages are installed. Makes the venv if it is missing. `uv`: uv
    installs the packages instead of pip."""
    venv = BUILD / folder
    python, complete = venv / "bin" / "python", venv / ".complete"
    if complete.exists() and complete.read_text() == " ".join(packages):
        return python
    installer = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--timeout", "15", "--retries", "1"]
    if uv:
        installer = [str(make([UV], "uv-venv").parent / "uv"), "pip", "install", "--python", str(python)]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, capture_output=True, timeout=120)
        subprocess.run([*installer, "--quiet", *flags, *packages], check=True, capture_output=True, timeout=600)
    except (subprocess.SubprocessError, OSError) as error:
        words = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-300:]
        raise Unreachable("%s are not there and cannot be fetched: %s" % (", ".join(packages), words or error)) from error
    complete.write_text(" ".join(packages))
    return python


def enter(packages=PACKAGES, folder="clients-venv", flags=()):
    """Starts the script again inside the venv, and makes the venv first if it is missing. If packages are missing and
    there is no network, the test is skipped. `flags`: for pip."""
    if not missing(packages):
        return
    venv = BUILD / folder
    try:
        python = make(packages, folder, flags)
    except Unreachable as error:
        print("skipped: %s" % error)
        sys.exit(77)
    if Path(sys.prefix).resolve() == venv.resolve():
        sys.exit("%s lacks %s: remove the folder, so that it is made again" % (venv, ", ".join(missing(packages))))
    os.execv(python, [str(python), "-B", *sys.argv])
