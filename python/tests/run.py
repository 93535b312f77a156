#!/usr/bin/env python3
"""Builds the wheel of the Python package and tests it where the source tree is not.

    python/tests/run.py build BUILD            builds the wheel against the libraries in the build folder BUILD, and
                                               installs it with NumPy and pytest in the new environment BUILD/python/venv
    python/tests/run.py test BUILD FILE...     runs files of python/tests in that environment
    python/tests/run.py extras BUILD FILE...   the same in BUILD/python/extras, with lm_eval, mypy and nbclient from PyPI
    python/tests/run.py torch BUILD FILE...    the same with the torch that scripts/test all installs

Returns 77, which ctest reports as skipped, if packages are missing and PyPI cannot be reached, or if every test was
skipped."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "python" / "tests"
SKIPPED = 77
TOOLS = ["scikit-build-core==1.1.2", "nanobind==3.1.0"]
TESTING = ["numpy", "pytest==9.2.0"]
EXTRAS = [*TESTING, "lm_eval[api]==0.4.13", "mypy==2.4.1", "nbclient==0.11.0", "ipykernel==7.4.0"]
PIP = None  # the Python whose pip installs packages
TORCH = ROOT / "build" / "deps" / "transformers" / "bin" / "python"


class Skip(Exception):
    """Why nothing can be tested."""


def run(*command, **options):
    subprocess.run([os.fspath(part) for part in command], check=True, **options)


def install(python, packages, *flags, timeout=900):
    """Installs packages for a Python. Raises Skip if PyPI cannot be reached."""
    done = subprocess.run([os.fspath(part) for part in [PIP, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", "--timeout",
                                                        "15", "--retries", "1", *flags, *packages]],
                          capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise Skip(f"{', '.join(map(str, packages))} cannot be installed: {last}")


def make_pip(build_folder):
    """Makes the environment of the tools, whose pip installs everything. Debian's Python has none of its own."""
    global PIP
    folder = build_folder / "python" / "tools"
    PIP = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        install(PIP, TOOLS)
        (folder / ".complete").touch()


def environment(folder, packages, *flags):
    """Returns the Python of an environment, which is made if its packages are others."""
    python, complete = folder / "bin" / "python", folder / ".complete"
    if not (complete.exists() and complete.read_text() == " ".join(packages) and python.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        install(python, packages, *flags)
        complete.write_text(" ".join(packages))
    return python


def build(build_folder):
    """Builds the wheel and installs it in a new environment."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise Skip("Python's headers are missing: install python3-dev")
    work = build_folder / "python"
    wheels = work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    defines = {"DSV4_BUILD": build_folder, "CMAKE_MAKE_PROGRAM": shutil.which("ninja")}
    flags = [part for name, value in defines.items() if value for part in ("--config-settings", f"cmake.define.{name}={value}")]
    run(PIP, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation",
        "--no-deps", "--wheel-dir", wheels, "--config-settings", f"build-dir={work / 'build'}", *flags, ROOT / "python",
        env={**os.environ, "PATH": f"{PIP.parent}:{os.environ['PATH']}"})
    shutil.rmtree(work / "venv", ignore_errors=True)
    python = environment(work / "venv", TESTING)
    install(python, [wheel_of(build_folder)], "--no-deps", "--no-compile")
    print("built and installed", wheel_of(build_folder).name, wheel_of(build_folder).stat().st_size, "bytes")
    return 0


def wheel_of(build_folder):
    wheels = list((build_folder / "python" / "wheels").glob("dsv4-*.whl"))
    if not wheels:
        raise Skip("the wheel was not built")
    return wheels[0]


def test(python, files, **env):
    """Runs pytest in an empty folder. Returns the status for ctest."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        done = subprocess.run([python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", f"--junit-xml={report}",
                               *(TESTS / file for file in files)], cwd=folder,
                              env={**os.environ, "DSV4_REPOSITORY": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **env})
        if done.returncode != 0:
            return done.returncode
        suite = ElementTree.parse(report).getroot().find("testsuite")
        return SKIPPED if suite.get("tests") == suite.get("skipped") else 0


def main(mode, build_folder, *files):
    build_folder = Path(build_folder).resolve()
    make_pip(build_folder)
    if mode == "build":
        return build(build_folder)
    wheel = wheel_of(build_folder)
    if mode == "test":
        return test(build_folder / "python" / "venv" / "bin" / "python", files)
    if mode == "extras":
        python = environment(build_folder / "python" / "extras", EXTRAS)
        install(python, [wheel], "--no-deps", "--force-reinstall")
        return test(python, files)
    if mode == "torch":
        if not TORCH.exists():
            raise Skip("torch is not installed: tools/golden/install_transformers.py installs it")
        target = build_folder / "python" / "torch"
        shutil.rmtree(target, ignore_errors=True)
        install(TORCH, [wheel, "pytest==9.2.0", "iniconfig", "packaging", "pluggy", "pygments"], "--no-deps", "--target", target)
        return test(TORCH, files, PYTHONPATH=str(target))
    raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except Skip as reason:
        print("skipped:", reason)
        sys.exit(SKIPPED)
