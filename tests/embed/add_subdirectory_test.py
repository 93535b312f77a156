#!/usr/bin/env python3
"""Builds a project that has dsv4 as a sub-folder: add_subdirectory_test.py SOURCES [--real PROGRAM | TEST...].

The parent (parent/CMakeLists.txt) has warnings, a standard, targets and libraries of its own, and checks itself what it
finds after it has added dsv4. Without --real a stand-in for the compiler makes empty objects (stand_in.sh): every
combination of generator and parts is built, in seconds. With --real the README's project with the program of
docs/library.md is compiled and run.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from support import example, expected_text, run  # noqa: E402

HERE = Path(__file__).resolve().parent
ARGS = argparse.Namespace(sources=HERE.parents[1], real=False)
JOBS = os.environ.get("DSV4_TEST_JOBS", "2")
# Cache variables that appear in the parent: ours, and what find_package sets for the packages that the engine needs.
CACHE = re.compile(r"DSV4_|dsv4_|nlohmann_json_DIR$|CMAKE_HAVE_LIBC_PTHREAD$"
                   r"|FIND_PACKAGE_MESSAGE_DETAILS_(Threads|nlohmann_json)$")
SERVER_CACHE = re.compile(r"CLI11_DIR$|FIND_PACKAGE_MESSAGE_DETAILS_CLI11$")
CUDA_CACHE = re.compile(r"CMAKE_CUDA_(?!ARCHITECTURES)|CUDAToolkit_|CUDA_|_CMAKE_CUDA|CMAKE_CUDA_COMPILER"
                        r"|FIND_PACKAGE_MESSAGE_DETAILS_CUDAToolkit$")


def cache(build):
    lines = (build / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    return {re.split(r"[:=]", line)[0] for line in lines if re.match(r"[A-Za-z_]", line) and "-ADVANCED:" not in line}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ["CMakeLists.txt", "own.cc"]:
            shutil.copy(HERE / "parent" / name, self.root / name)
        (self.root / "main.cc").write_text(example(ARGS.sources), encoding="utf-8")
        (self.root / "dsv4").symlink_to(ARGS.sources)
        self.build = self.root / "build"


class StandIn(Folder):
    """Whole builds with a compiler that makes empty objects."""

    def setUp(self):
        super().setUp()
        self.log = self.root / "log"
        compiler = os.environ.get("CXX", "c++")
        empty = self.root / "empty.o"
        run(compiler, "-x", "c++", "-c", "-o", empty, os.devnull)
        self.environment = dict(os.environ, LOG=str(self.log), EMPTY_OBJECT=str(empty))
        self.compilers = {"CXX": self.stand_in("c++", shutil.which(compiler))}

    def stand_in(self, name, real):
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\nREAL=%s exec %s \"$@\"\n" % (real, HERE / "stand_in.sh"), encoding="utf-8")
        path.chmod(0o755)
        return path

    def configure(self, generator, *settings):
        words = ["-DCMAKE_%s_COMPILER=%s" % item for item in self.compilers.items()]
        return run("cmake", "-G", generator, "-S", self.root, "-B", self.build, "-DDSV4_CCACHE=OFF", *words, *settings,
                   env=self.environment)

    def make(self, *words):
        run("cmake", "--build", self.build, "--parallel", JOBS, *words, env=self.environment)

    def lines(self, pattern):
        return [line for line in self.log.read_text(encoding="utf-8").splitlines() if re.search(pattern, line)]

    def check_cache(self, generator, allowed, *settings):
        """The parent's cache has no entries of dsv4 but `allowed`."""
        self.configure(generator, "-DWITH_DSV4=OFF", *settings)
        before = cache(self.build)
        shutil.rmtree(self.build)
        self.configure(generator, "-DWITH_DSV4=ON", *settings)
        added = sorted(cache(self.build) - before)
        self.assertEqual([name for name in added if not any(a.match(name) for a in allowed)], [])
        self.assertIn("DSV4_UNITY", added)

    def check_flags(self):
        """Our sources are compiled with our flags after the parent's, the parent's sources with its own alone."""
        ours = self.lines(r" -c .*(/dsv4/src/|/dsv4/server/|/dsv4/cli/|dsv4/.*/unity_\d+_cxx)")
        self.assertGreater(len(ours), 20)
        for line in ours:
            words = line.split()
            for flag, ending in [("-Werror", "-Wno-error"), ("-fno-rtti", "-frtti"), ("-fno-exceptions", "-fexceptions")]:
                if flag in words:
                    after = words[words.index(flag):]
                    self.assertTrue(ending in after or flag == "-Werror" and "-w" in after, line)
            self.assertTrue(re.search(r"-std=(gnu|c)\+\+(20|2a)\b", line), line)
        own = self.lines(r" -o CMakeFiles/(app|libedit|xgrammar)\.dir/\S* -c ")
        self.assertEqual(len(own), 3)
        for line in own:
            self.assertFalse(re.search(r"-Wno-error|-fexceptions|-frtti|-fvisibility|-fno-gnu-unique|/src\b", line), line)

    def check_install(self):
        """The parent installs its own files alone."""
        run("cmake", "--install", self.build, "--prefix", self.root / "installed")
        files = [str(p.relative_to(self.root / "installed")) for p in (self.root / "installed").rglob("*") if p.is_file()]
        self.assertEqual(files, ["share/parent/own.cc"])

    def test_makefiles(self):
        self.check_cache("Unix Makefiles", [CACHE], "-DNO_EXCEPTIONS=ON")
        self.make()
        self.check_flags()
        self.check_install()
        self.assertEqual(self.lines("boost|/dsv4/server/|/dsv4/cli/"), [])

    def test_ninja(self):
        self.check_cache("Ninja", [CACHE])
        self.make()
        self.check_flags()
        self.check_install()
        self.assertFalse((self.build / "dsv4/dsv4").exists())

    def test_ninja_of_several_configurations(self):
        self.configure("Ninja Multi-Config", "-DWITH_DSV4=ON")
        for kind in ["Debug", "Release"]:
            self.make("--config", kind)
        objects = {path.parent.name for path in self.build.rglob("dsv4_ops_*.o")}
        if "x86_64" in os.uname().machine:
            self.assertEqual(objects, {"Debug", "Release"})

    def test_program_and_server(self):
        self.check_cache("Unix Makefiles", [CACHE, SERVER_CACHE], "-DDSV4_BUILD_CLI=ON")
        self.make()
        self.assertTrue((self.build / "dsv4/dsv4").is_file())
        self.check_flags()
        self.check_install()

    def test_cuda_runtime_is_in_the_link_line(self):
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if nvcc is None:
            self.skipTest("no nvcc")
        self.compilers["CUDA"] = self.stand_in("nvcc", nvcc)
        self.check_cache("Ninja", [CACHE, CUDA_CACHE], "-DDSV4_CUDA=ON")
        self.make()
        for line in self.lines(r"-c .*\.cu\b"):
            self.assertIn("sm_90a", line)
        link = self.lines(r"-o app ")
        self.assertEqual(len(link), 1)
        self.assertEqual(link[0].count("libcudart_static.a"), 1, link[0])


class Real(Folder):
    """The README's project, compiled for real with the parent's own flags and targets."""

    def test_text(self):
        run("cmake", "-G", "Unix Makefiles", "-S", self.root, "-B", self.build, "-DWITH_DSV4=ON")
        run("cmake", "--build", self.build, "--parallel", JOBS, "--target", "app")
        text = run(self.build / "app", cwd=ARGS.sources)
        self.assertEqual(text.strip(), expected_text(ARGS.program, ARGS.sources).strip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--real", metavar="PROGRAM", help="compile for real and compare with the text of PROGRAM")
    parser.add_argument("tests", nargs="*", default=["StandIn"])
    ARGS = parser.parse_args()
    if ARGS.real and len(os.sched_getaffinity(0)) < 4 and "DSV4_TEST_REAL_EMBED" not in os.environ:
        print("skipped: it compiles the engine, five minutes on two cores; set DSV4_TEST_REAL_EMBED=1 to run it")
        sys.exit(77)
    ARGS.sources, ARGS.program = ARGS.sources.resolve(), ARGS.real
    unittest.main(argv=["embed", "-v", *(["Real"] if ARGS.real else ARGS.tests)])
