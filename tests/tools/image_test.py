#!/usr/bin/env python3
"""Tests the recipe of the images: what is copied, and that their command configures a tree that a host has built in."""

import fnmatch
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ["deploy/Dockerfile", "deploy/Dockerfile.cuda"]


def ignored():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def configure_command(dockerfile):
    text = (ROOT / dockerfile).read_text(encoding="utf-8").replace("\\\n", " ")
    return re.search(r"^RUN (cmake --preset [^&\n]*)", text, re.M)[1].strip()


class Image(unittest.TestCase):
    def test_history_and_builds_of_the_host_are_not_copied(self):
        for name in [".git", "build", ".venv"]:
            self.assertIn(name, ignored())
        tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "cmake", "src", "server", "cli", "include", "scripts", "models",
                                  "LICENSE", "NOTICE"], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        self.assertGreater(len(tracked), 100)
        for path in tracked:  # what the build reads is copied
            for pattern in ignored():
                self.assertFalse(fnmatch.fnmatch(path, pattern) or path.startswith(pattern + "/"), path)

    def test_the_command_configures_a_tree_with_a_cache_of_another_place(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "src")
            tree.mkdir()
            for name in ["CMakeLists.txt", "CMakePresets.json", "LICENSE", "NOTICE", "cmake", "src", "server", "cli", "include",
                         "models", "deploy", "capi"]:
                (tree / name).symlink_to(ROOT / name)
            (tree / "build/release").mkdir(parents=True)
            boost = ROOT / "build/deps/boost"
            if boost.exists():  # a system without libboost-dev
                (tree / "build/deps").mkdir()
                (tree / "build/deps/boost").symlink_to(boost)
            (tree / "build/release/CMakeCache.txt").write_text(
                "CMAKE_CACHEFILE_DIR:INTERNAL=/elsewhere/build/release\nCMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
            command = configure_command("deploy/Dockerfile")

            def configure():
                return subprocess.run(["sh", "-c", command], cwd=tree, capture_output=True, text=True, timeout=100)
            result = configure()
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("has no XGrammar: run scripts/fetch_xgrammar", re.sub(r"\s+", " ", result.stderr))
            grammars = tree / "build/deps/xgrammar"
            (grammars / "include/xgrammar").mkdir(parents=True)
            (grammars / "include/xgrammar/xgrammar.h").touch()
            (grammars / "cpp").mkdir()
            (grammars / "cpp/grammar_matcher.cc").touch()
            (grammars / "cpp/grammar.cc").touch()
            for name in ["NOTICE", "3rdparty/picojson/picojson.h"]:
                (grammars / name).parent.mkdir(parents=True, exist_ok=True)
                (grammars / name).write_text("/*\n * text\n */\n")
            result = configure()
            self.assertEqual(result.returncode, 0, result.stderr)
            shutil.rmtree(tree / "build")

    def test_both_images_require_grammars_bound_jobs_and_install_only_what_a_build_needs(self):
        for name in DOCKERFILES:
            text = (ROOT / name).read_text(encoding="utf-8")
            for words in ["scripts/setup build", "--fresh", "-DDSV4_REQUIRE_XGRAMMAR=ON", "build_preset release 1000",
                          "dpkg-dev file"]:
                self.assertIn(words, text, name)


if __name__ == "__main__":
    unittest.main()
