#!/usr/bin/env python3
"""Installs libdsv4, moves the prefix, and builds and runs programs with it: installed_test.py SOURCES BUILD CXX.

The programs are that of docs/library.md, found by find_package and by pkg-config, with the shared and the static library.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from support import example, expected_text, run  # noqa: E402

HERE = Path(__file__).resolve().parent
SOURCES, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
CXX = sys.argv[3]
# Libraries that libdsv4.so may need at run time.
NEEDED = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
          "libpthread.so.0", "libdl.so.2", "librt.so.1"}
OURS = re.compile(r"(dsv4::|(typeinfo|typeinfo name|vtable) for dsv4::|dsv4_|DSV4_\d)")


def names(*options):
    """Returns pairs of kind and demangled name that nm prints."""
    lines = run("nm", "--demangle", *options).splitlines()
    return [(m[1], m[2]) for m in (re.match(r"[0-9a-f ]{16} (\w) (.*)$", line) for line in lines) if m]


def setUpModule():
    global FOLDER, PREFIX
    FOLDER = tempfile.TemporaryDirectory()
    installed = Path(FOLDER.name, "first")
    run("cmake", "--install", BUILD, "--prefix", installed)
    PREFIX = Path(FOLDER.name, "moved", "prefix")
    PREFIX.parent.mkdir()
    installed.rename(PREFIX)


def tearDownModule():
    FOLDER.cleanup()


class Files(unittest.TestCase):
    def test_the_list(self):
        files = {str(path.relative_to(PREFIX)) for path in PREFIX.rglob("*") if not path.is_dir()}
        lib = LIBDIR.relative_to(PREFIX)
        version = re.search(r"project\(dsv4 VERSION ([0-9.]+)", (SOURCES / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
        for name in ["bin/dsv4", "include/dsv4/engine.h", "include/dsv4/server.h", "share/dsv4/models/nano/config.json",
                     "share/doc/dsv4/LICENSE", "share/doc/dsv4/NOTICE", "share/doc/dsv4/THIRD-PARTY",
                     *(str(lib / name) for name in ["libdsv4.a", "libdsv4.so", "libdsv4.so.0", "libdsv4.so." + version,
                                                    "cmake/dsv4/dsv4Config.cmake", "pkgconfig/dsv4.pc"])]:
            self.assertIn(name, files)
        headers = {"include/" + str(path.relative_to(SOURCES / "include")) for path in (SOURCES / "include").rglob("*.h")}
        self.assertEqual({name for name in files if name.startswith("include/")}, headers)

    def test_components(self):
        owner = {}
        for component in ["runtime", "development", "nano"]:
            prefix = Path(FOLDER.name, component)
            run("cmake", "--install", BUILD, "--prefix", prefix, "--component", component)
            for path in prefix.rglob("*"):
                if not path.is_dir():
                    owner.setdefault(str(path.relative_to(prefix)), []).append(component)
            shutil.rmtree(prefix)
        everything = {str(path.relative_to(PREFIX)) for path in PREFIX.rglob("*") if not path.is_dir()}
        self.assertEqual(set(owner), everything)
        self.assertEqual([name for name, where in owner.items() if len(where) > 1], [])
        self.assertEqual(owner["bin/dsv4"], ["runtime"])
        lib = str(LIBDIR.relative_to(PREFIX))
        self.assertEqual((owner[lib + "/libdsv4.so.0"], owner[lib + "/libdsv4.so"]), (["development"], ["development"]))

    def test_no_file_has_an_absolute_path(self):
        places = [str(BUILD), str(SOURCES), FOLDER.name]
        for path in [*PREFIX.rglob("*.cmake"), *PREFIX.rglob("*.pc"), *PREFIX.rglob("*.h"), LIBDIR / "libdsv4.so",
                     LIBDIR / "libdsv4.a"]:
            content = path.read_bytes()
            for place in places:
                self.assertNotIn(place.encode() + b"/", content, path.name)


class Names(unittest.TestCase):
    def test_the_shared_library_shows_ours_alone(self):
        shown = names("--dynamic", "--defined-only", LIBDIR / "libdsv4.so")
        self.assertEqual([pair for pair in shown if not OURS.match(pair[1])], [])
        self.assertGreater(len(shown), 60)
        dynamic = run("readelf", "--dynamic", "--wide", LIBDIR / "libdsv4.so")
        self.assertIn("soname: [libdsv4.so.0]", dynamic)
        self.assertEqual(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - NEEDED, set())
        self.assertNotIn("RUNPATH", dynamic)

    def test_the_static_library_shows_ours_alone(self):
        shown = [pair for pair in names("--defined-only", "--extern-only", LIBDIR / "libdsv4.a")]
        self.assertEqual([pair for pair in shown if not OURS.match(pair[1])], [])
        self.assertEqual([name for kind, name in shown if kind == "u"], [])

    def test_what_the_command_line_uses_is_shown(self):
        """cli/ uses most of include/dsv4, and nothing else of dsv4."""
        shown = {name for _, name in names("--dynamic", "--defined-only", LIBDIR / "libdsv4.so")}
        shown = {re.sub(r"@@.*$", "", name) for name in shown}
        objects = list((BUILD / "cli/CMakeFiles/dsv4.dir").rglob("*.o"))
        self.assertTrue(objects)
        defined = {name for _, name in names("--defined-only", *objects)}
        used = set()
        for line in run("nm", "--demangle", "--undefined-only", *objects).splitlines():
            if m := re.match(r" +U (.*dsv4::.*)$", line):
                used.add(m[1])
        missing = sorted(name for name in used - defined - shown if OURS.match(name))
        self.assertGreater(len(used - defined), 40)
        self.assertEqual(missing, [])


    def test_the_c_api_is_shown(self):
        header = SOURCES / "include/dsv4.h"
        if not header.exists():
            self.skipTest("no include/dsv4.h")
        declared = set(re.findall(r"\b(dsv4_\w+)\(", re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)))
        shown = {re.sub(r"@@.*$", "", name) for _, name in names("--dynamic", "--defined-only", LIBDIR / "libdsv4.so")}
        self.assertEqual(declared - shown, set())


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = expected_text(PREFIX / "bin/dsv4", PREFIX).strip()
        assert len(cls.expected) > 40
        cls.work = Path(FOLDER.name, "program")
        cls.work.mkdir()
        (cls.work / "main.cc").write_text(example(SOURCES), encoding="utf-8")
        shutil.copy(HERE / "find_package/CMakeLists.txt", cls.work)

    def check(self, program, **environment):
        text = run(program, cwd=PREFIX / "share/dsv4", env={**os.environ, **environment})
        self.assertEqual(text.strip(), self.expected)
        return run("readelf", "--dynamic", "--wide", program)

    def with_cmake(self, target):
        build = self.work / target.replace("::", "-")
        run("cmake", "-S", self.work, "-B", build, "-DCMAKE_PREFIX_PATH=%s" % PREFIX, "-DTARGET=" + target,
            "-DCMAKE_CXX_COMPILER=" + CXX)
        run("cmake", "--build", build)
        return self.check(build / "app")

    def test_find_package_shared(self):
        self.assertIn("[libdsv4.so.0]", self.with_cmake("dsv4::dsv4"))

    def test_find_package_static(self):
        self.assertNotIn("libdsv4", self.with_cmake("dsv4::static"))

    def with_pkg_config(self, *options):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(LIBDIR / "pkgconfig")}
        return run("pkg-config", *options, "dsv4", env=environment).split()

    def test_pkg_config_shared(self):
        words = self.with_pkg_config("--cflags", "--libs")
        run(CXX, "-std=c++20", self.work / "main.cc", *words, "-o", self.work / "shared")
        self.assertIn("[libdsv4.so.0]", self.check(self.work / "shared", LD_LIBRARY_PATH=str(LIBDIR)))

    def test_pkg_config_static(self):
        words = self.with_pkg_config("--cflags", "--libs", "--static")
        words = ["-l:libdsv4.a" if word == "-ldsv4" else word for word in words]  # as docs/library.md says
        run(CXX, "-std=c++20", self.work / "main.cc", *words, "-o", self.work / "static")
        self.assertNotIn("libdsv4", self.check(self.work / "static"))

    def test_another_minor_version_is_refused(self):
        text = (self.work / "CMakeLists.txt").read_text().replace("find_package(dsv4 0.2", "find_package(dsv4 0.99")
        other = self.work / "other"
        other.mkdir()
        (other / "CMakeLists.txt").write_text(text)
        (other / "main.cc").touch()
        result = subprocess.run(["cmake", "-S", other, "-B", other / "build", "-DCMAKE_PREFIX_PATH=%s" % PREFIX,
                                 "-DTARGET=dsv4::dsv4"], capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("0.99", result.stderr)


if __name__ == "__main__":
    setUpModule()
    LIBDIR = next(PREFIX.rglob("libdsv4.a")).parent
    setUpModule = None
    unittest.main(argv=["installed", "-v"])
