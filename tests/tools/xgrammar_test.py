#!/usr/bin/env python3
"""Tests scripts/fetch_xgrammar with an archive that is already there, and the patches of cmake/xgrammar.

The archive is a small one whose hash replaces the script's. The last test uses the real one, if build/deps has it.
"""

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "cmake/xgrammar").glob("*.patch"))
SCRIPT = (ROOT / "scripts/fetch_xgrammar").read_text(encoding="utf-8")
VERSION = re.search(r"^VERSION=(.*)$", SCRIPT, re.M)[1]
PATCH = """Reason: a test.
---
--- a/cpp/a.cc
+++ b/cpp/a.cc
@@ -1 +1 @@
-int one;
+int %s;
"""


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name, "tree")
        for name in ["scripts", "cmake/xgrammar", "build/deps"]:
            (self.root / name).mkdir(parents=True)
        shutil.copy(ROOT / "scripts/common.sh", self.root / "scripts")
        package = Path(folder.name, "xgrammar-" + VERSION)
        for name in ["cpp/a.cc", "include/xgrammar/xgrammar.h", "LICENSE", "NOTICE", "3rdparty/picojson/p.h", "3rdparty/dlpack/d.h"]:
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text("int one;\n")
        self.archive = self.root / "build/deps" / (package.name + ".tar.gz")
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(package, package.name)
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        script = re.sub(r"^SHA256=.*$", "SHA256=" + digest, SCRIPT, flags=re.M)
        # Without network: what is not in build/deps cannot be had.
        (self.root / "scripts/fetch_xgrammar").write_text(script.replace("pip download", "false"))
        self.patch = self.root / "cmake/xgrammar/0001-test.patch"
        self.patch.write_text(PATCH % "two")

    def run_script(self):
        result = subprocess.run(["bash", self.root / "scripts/fetch_xgrammar"], capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout + result.stderr

    def source(self):
        return (self.root / "build/deps/xgrammar/cpp/a.cc").read_text()

    def test_the_source_is_patched_once_and_again_when_a_patch_changes(self):
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.source(), "int two;\n")
        self.assertEqual(self.run_script(), (0, ""))
        self.patch.write_text(PATCH % "three")
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.source(), "int three;\n")

    def test_a_patch_that_does_not_fit_leaves_the_old_source(self):
        self.run_script()
        self.patch.write_text(PATCH.replace("one", "other") % "three")
        code, said = self.run_script()
        self.assertEqual(code, 1)
        self.assertIn("0001-test.patch does not fit XGrammar", said)
        self.assertEqual(self.source(), "int two;\n")

    def test_a_damaged_archive_is_not_used(self):
        self.archive.write_bytes(self.archive.read_bytes() + b"x")
        code, said = self.run_script()
        self.assertEqual(code, 1)
        self.assertIn("cannot be fetched from PyPI", said)
        self.assertFalse((self.root / "build/deps/xgrammar").exists())


class Patches(unittest.TestCase):
    def test_each_gives_its_reason_and_marks_the_files(self):
        self.assertTrue(PATCHES)
        marked, changed = set(), set()
        for patch in PATCHES:
            text = patch.read_text(encoding="utf-8")
            head = text.split("\n---\n")[0]
            self.assertGreater(len(head.split()), 25, patch.name)
            changed |= set(re.findall(r"^\+\+\+ b/(\S+)", text, re.M))
            for part in text.split("\n+++ b/")[1:]:
                if "\n+// Changed by dsv4" in part:
                    marked.add(part.split("\n")[0])
        self.assertEqual(changed, marked)

    def test_they_fit_the_archive(self):
        archive = ROOT / "build/deps" / ("xgrammar-%s.tar.gz" % VERSION)
        if not archive.exists():
            self.skipTest("no " + archive.name)
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(archive) as file:
                file.extractall(folder)
            for patch in PATCHES:
                subprocess.run(["git", "apply", "--whitespace=nowarn", patch], cwd=Path(folder, "xgrammar-" + VERSION), check=True)


if __name__ == "__main__":
    unittest.main()
