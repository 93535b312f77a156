"""The packages from PyPI that tests of `dsv4 serve` use, in folders of build/."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
PACKAGES = ["openai==3.52.0", "anthropic==2.11.0", "jsonschema==4.26.0"]


# What is larger, and what only one test uses.
SUITES = ["litellm==1.83.0", "lm_eval[api]==0.4.13"]


def enter(packages=PACKAGES, folder="clients-venv"):
    """Goes on where the packages are: starts the script again inside the venv, which is made first where it is missing.
    Without network and without them the test is skipped."""
    if all(importlib.util.find_spec(re.split("[=[]", package)[0]) for package in packages):
        return
    venv = BUILD / folder
    python = venv / "bin" / "python"
    complete = venv / ".complete"
    if not complete.exists() or complete.read_text() != " ".join(packages):
        try:
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, capture_output=True, timeout=120)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "15",
                            "--retries", "1", *packages], check=True, capture_output=True, timeout=600)
        except (subprocess.SubprocessError, OSError):
            print("skipped: %s are not there and cannot be fetched" % ", ".join(packages))
            sys.exit(77)
        complete.write_text(" ".join(packages))
    os.execv(python, [str(python), "-B", *sys.argv])
