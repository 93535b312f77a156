#!/usr/bin/env python3
"""Installs torch and transformers from PyPI in build/deps/transformers. Tests compare our references with them.

    tools/golden/install_transformers.py

PyPI's torch links against 3 GB of NVIDIA's libraries, which a CPU does not need. This script does not fetch them. It
makes one small library with their names and with every function that torch's libraries use. Each function returns the
error that there is no driver. The result takes 1.4 GB of disk; the installation needs 2 GB and half a minute on a fast
connection.

Does nothing if the packages are installed. If they cannot be installed, prints one line with the reason and returns 77.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "build" / "deps" / "transformers"
PYTHON = TARGET / "bin" / "python"
REQUIREMENTS = Path(__file__).with_name("transformers.txt")
FREE_BYTES = 2 << 30
MAX_SECONDS = 300
NVIDIA = ("libcu", "libnccl", "libnv")  # prefixes of NVIDIA's libraries
UNVERSIONED = ("cu", "nccl")  # prefixes of NVIDIA's functions without a version
NO_DRIVER = 35  # cudaErrorInsufficientDriver: torch then reports that there is no GPU
TRIAL = """
import numpy, torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM
assert not torch.cuda.is_available()
x = torch.arange(9, dtype=torch.float64).reshape(3, 3)
assert torch.equal(x @ x, torch.tensor([[15, 18, 21], [42, 54, 66], [69, 90, 111]], dtype=torch.float64))
"""


class Unavailable(Exception):
    """The reason why the packages cannot be installed, in one line."""


def stamp():
    """Returns a hash of the files that an installation depends on."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()


def is_installed():
    """Returns whether an installation by this version of the file exists."""
    try:
        return PYTHON.exists() and (TARGET / ".dsv4").read_text() == stamp()
    except OSError:
        return False


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def why_pip_failed(text):
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR:")]
    if "(from versions: none)" in text:
        return "PyPI cannot be reached"
    if errors and errors[-1].startswith("No matching distribution"):
        return f"{errors[-1]} for Python {sys.version_info.major}.{sys.version_info.minor} on {os.uname().machine}"
    return f"pip failed: {errors[-1] if errors else 'it printed no reason'}"


def fetch():
    """Installs the packages from PyPI. Temporary files are in TARGET, too."""
    if subprocess.run([sys.executable, "-m", "venv", TARGET], capture_output=True).returncode != 0:
        raise Unavailable("python3 -m venv fails: install the package python3-venv")
    try:
        done = subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                               "--no-compile", "--no-cache-dir", "--only-binary", ":all:", "--timeout", "15",
                               "--retries", "1", "-r", REQUIREMENTS], capture_output=True, text=True,
                              timeout=MAX_SECONDS, env=os.environ | {"TMPDIR": str(TARGET)})
    except subprocess.TimeoutExpired:
        raise Unavailable(f"PyPI took longer than {MAX_SECONDS} seconds") from None
    if done.returncode != 0:
        raise Unavailable(why_pip_failed(done.stdout + done.stderr))


def linked(path):
    """Returns (the libraries that a library needs, {library: versions of the symbols that it needs from there})."""
    needed, versions, source = set(), {}, None
    for words in map(str.split, output("objdump", "-p", path).splitlines()):
        if words[:1] == ["NEEDED"]:
            needed.add(words[1])
        elif words[:2] == ["required", "from"]:
            source = words[2].rstrip(":")
        elif source and len(words) == 4:
            versions.setdefault(source, set()).add(words[3])
    return needed, versions


def undefined(path):
    """Returns {(name, version or "")} of the undefined symbols of a library."""
    found = set()
    for line in output("nm", "-D", "--undefined-only", path).splitlines():
        name, _, version = line.split()[-1].partition("@")
        found.add((name, version.lstrip("@")))
    return found


def stand_in(folder):
    """Writes the library that stands in for NVIDIA's, with all symbols that torch's libraries in this folder need."""
    absent, versions, wanted = set(), {}, set()
    for path in [*folder.glob("lib*.so"), *folder.glob("lib*.so.*")]:
        needed, required = linked(path)
        names = {name for name in needed if name.startswith(NVIDIA)}
        absent |= names
        versions |= {version: set() for name in names for version in required.get(name, ())}
        wanted |= undefined(path)
    plain = {name for name, version in wanted if not version and name.startswith(UNVERSIONED)}
    for name, version in wanted:
        if version in versions:
            versions[version].add(name)
    if absent:
        write_library(folder, plain, versions)
    for name in absent:
        (folder / name).symlink_to("libno_driver.so")


def write_library(folder, plain, versions):
    """Writes libno_driver.so with the names of `plain`, and the names of `versions` under their version."""
    lines = ["int no_driver(void) { return %d; }" % NO_DRIVER,
             'const char *no_driver_text(void) { return "this library stands in for NVIDIA\'s"; }']
    for name in sorted(plain.union(*versions.values())):
        function = "no_driver_text" if name.endswith(("ErrorString", "ErrorName")) else "no_driver"
        lines.append(f'__asm__(".globl {name}\\n.set {name}, {function}\\n.type {name}, %function");')
    source, script = folder / "no_driver.c", folder / "no_driver.map"
    source.write_text("\n".join(lines) + "\n")
    script.write_text("".join(f"{version} {{ {' '.join(f'{name};' for name in sorted(found))} }};\n"
                              for version, found in sorted(versions.items())))
    options = [f"-Wl,--version-script={script}"] if versions else []
    output("gcc", "-shared", "-fPIC", "-nostdlib", *options, "-o", folder / "libno_driver.so", source)


def what_failed(error):
    """Returns the last line that the failed program of `output` printed."""
    if isinstance(error, OSError):
        return str(error)
    return (error.stderr.strip() or f"{error.cmd[0]}: exit status {error.returncode}").splitlines()[-1]


def try_it():
    """Imports the packages, which also compiles them, and multiplies two matrices."""
    try:
        output(PYTHON, "-c", TRIAL)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"torch does not run without NVIDIA's libraries: {what_failed(error)}") from None


def install():
    free = shutil.disk_usage(TARGET.parent).free
    if free < FREE_BYTES:
        raise Unavailable(f"{TARGET.parent} has {free >> 20} MiB free: {FREE_BYTES >> 20} MiB are needed")
    fetch()
    (folder,) = TARGET.glob("lib/python*/site-packages/torch/lib")
    try:
        stand_in(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"cannot make a library that stands in for NVIDIA's: {what_failed(error)}") from None
    try_it()
    (TARGET / ".dsv4").write_text(stamp())


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    try:
        if is_installed():
            try_it()
            return 0
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir(parents=True)
        install()
    except Unavailable as reason:
        shutil.rmtree(TARGET, ignore_errors=True)
        print(f"== skipped: cannot install transformers: {reason}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
