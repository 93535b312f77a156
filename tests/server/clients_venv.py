"""The packages from PyPI that tests of `dsv4 serve` use, in build/clients-venv."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[2] / "build" / "clients-venv"
PACKAGES = ["openai==3.52.0", "anthropic==2.11.0", "jsonschema==4.26.0"]


def enter():
    """Goes on where the packages are: starts the script again inside the venv, which is made first where it is missing.
    Without network and without them the test is skipped."""
    if all(importlib.util.find_spec(package.split("==")[0]) for package in PACKAGES):
        return
    python = VENV / "bin" / "python"
    complete = VENV / ".complete"
    if not complete.exists() or complete.read_text() != " ".join(PACKAGES):
        try:
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, capture_output=True, timeout=120)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "15",
                            "--retries", "1", *PACKAGES], check=True, capture_output=True, timeout=300)
        except (subprocess.SubprocessError, OSError):
            print("skipped: %s are not there and cannot be fetched" % ", ".join(PACKAGES))
            sys.exit(77)
        complete.write_text(" ".join(PACKAGES))
    os.execv(python, [str(python), "-B", *sys.argv])
