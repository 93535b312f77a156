"""Tests tools/golden/install_transformers.py: the library that stands in for NVIDIA's, and messages of failures."""

import collections
import contextlib
import ctypes
import io
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from golden import ROOT  # noqa: F401  (puts tools/golden on the path)

import install_transformers


class StandIn(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def library(self, name, code, *options):
        source = self.folder / "source.c"
        source.write_text(code)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self.folder / name, source, f"-Wl,-soname,{name}", *options],
                       check=True)

    def test_a_library_that_lacks_two_runs_with_it(self):
        versions = self.folder / "versions"
        versions.write_text("libcuthing.so.1 { cuthingRun; cuthingGetErrorString; };\n")
        self.library("libcuthing.so.1", 'int cuthingRun(void) { return 1; }\n'
                     'const char *cuthingGetErrorString(int code) { return "fine"; }',
                     f"-Wl,--version-script={versions}")
        self.library("libnccl.so.2", "int ncclRun(void) { return 1; }")
        self.library("libuser.so", "int cuthingRun(void), ncclRun(void); const char *cuthingGetErrorString(int);\n"
                     "int use(void) { return 100 * cuthingRun() + ncclRun(); }\n"
                     "const char *text(void) { return cuthingGetErrorString(1); }", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN",
                     self.folder / "libcuthing.so.1", self.folder / "libnccl.so.2")
        for name in ("libcuthing.so.1", "libnccl.so.2"):
            (self.folder / name).unlink()
        with self.assertRaises(OSError):
            ctypes.CDLL(self.folder / "libuser.so")
        install_transformers.stand_in(self.folder)
        user = ctypes.CDLL(self.folder / "libuser.so")
        self.assertEqual(user.use(), 101 * install_transformers.NO_DRIVER)
        user.text.restype = ctypes.c_char_p
        self.assertIn(b"stands in", user.text())


class Refusals(unittest.TestCase):
    """Each failure gives exit status 77 and one line, and leaves no files."""

    def refused(self, **environment):
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()) as out:
            target = Path(name) / "deps" / "transformers"
            settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", **environment}
            with (mock.patch.object(install_transformers, "TARGET", target),
                  mock.patch.object(install_transformers, "PYTHON", target / "bin" / "python"),
                  mock.patch("sys.argv", ["program"]), mock.patch.dict(os.environ, settings)):
                self.assertEqual(install_transformers.main(), 77)
            self.assertFalse(target.exists())
        self.assertEqual(out.getvalue().count("\n"), 1, out.getvalue())
        self.assertTrue(out.getvalue().startswith("== skipped: cannot install transformers: "), out.getvalue())
        return out.getvalue()

    def test_pypi_cannot_be_reached(self):
        self.assertIn("PyPI cannot be reached", self.refused(PIP_INDEX_URL="https://127.0.0.1:9/simple"))

    def test_no_wheel_for_this_python(self):
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "torch-1.0-py3-none-any.whl").touch()
            said = self.refused(PIP_NO_INDEX="1", PIP_FIND_LINKS=name)
        self.assertRegex(said, r"No matching distribution found for torch==[0-9.]+ for Python 3\.\d+ on ")

    def test_no_room(self):
        usage = collections.namedtuple("usage", "total used free")(4 << 30, 3 << 30, 1 << 30)
        with mock.patch.object(install_transformers.shutil, "disk_usage", return_value=usage):
            self.assertRegex(self.refused(), r"has 1024 MiB free: \d+ MiB are needed")

    def test_torch_does_not_run(self):
        def fetch():
            (install_transformers.TARGET / "lib/python3/site-packages/torch/lib").mkdir(parents=True)
            install_transformers.PYTHON.parent.mkdir()
            install_transformers.PYTHON.symlink_to("/bin/false")

        with mock.patch.object(install_transformers, "fetch", fetch):
            said = self.refused()
        self.assertIn("cannot install transformers: torch does not run without NVIDIA's libraries", said)


if __name__ == "__main__":
    unittest.main()
