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


def missing(packages):
    """The packages that this Python does not have in the required version. Their modules may have other names."""
    def has(package):
        name, version = re.match(r"([^=[]+)(?:\[.*\])?(?:==(.*))?$", package).groups()
        try:
            return version in (None, metadata.version(name))
        except metadata.PackageNotFoundError:
            return False

    return [package for package in packages if not has(package)]


def enter(packages=PACKAGES, folder="clients-venv", flags=()):
    """Starts the script again inside the venv, and makes the venv first if it is missing. If packages are missing and
    there is no network, the test is skipped. `flags`: for pip."""
    if not missing(packages):
        return
    venv = BUILD / folder
    python = venv / "bin" / "python"
    complete = venv / ".complete"
    if not complete.exists() or complete.read_text() != " ".join(packages):
        try:
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, capture_output=True, timeout=120)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "15",
                            "--retries", "1", *flags, *packages], check=True, capture_output=True, timeout=600)
        except (subprocess.SubprocessError, OSError):
            print("skipped: %s are not there and cannot be fetched" % ", ".join(packages))
            sys.exit(77)
        complete.write_text(" ".join(packages))
    if Path(sys.prefix).resolve() == venv.resolve():
        sys.exit("%s lacks %s: remove the folder, so that it is made again" % (venv, ", ".join(missing(packages))))
    os.execv(python, [str(python), "-B", *sys.argv])
