#!/usr/bin/env python3
"""Tests the packages that CPack makes from a build, and what `cmake --install` installs.

    package_test.py BUILD_FOLDER

The packages of these tests do not have the bundled model, because compressing it takes long.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop()) if len(sys.argv) == 2 else ROOT / "build" / "release"
VERSION = re.search(r"^project\(dsv4 VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
EPOCH = "1796000000"
DEB = shutil.which("dpkg-shlibdeps") and shutil.which("file")  # CPack needs both for a .deb
COMMANDS = ["generate", "serve", "chat", "bench-decode"]


def run(*command, **more):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=True, **more).stdout


def pack(generator, folder, epoch):
    """The package that CPack makes in `folder`."""
    run("cpack", "-G", generator, "-B", folder, "-D", "CPACK_COMPONENTS_ALL=runtime", "-D", "CPACK_OUTPUT_FILE_PREFIX=",
        cwd=BUILD, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, umask=0o022)
    (package,) = [path for path in Path(folder).iterdir() if path.is_file()]
    return package


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tmp = Path(self.folder.name)

    def pack(self, generator, name="a", epoch=EPOCH):
        return pack(generator, self.tmp / name, epoch)

    def deb(self):
        if not DEB:
            self.skipTest("dpkg-dev or file is not installed")
        return self.pack("DEB")

    def test_the_same_build_gives_the_same_bytes(self):
        generators = ["TGZ", "DEB"] if DEB else ["TGZ"]
        for generator in generators:
            with self.subTest(generator=generator):
                first = self.pack(generator, "1-" + generator)
                again = self.pack(generator, "a-longer-name-" + generator)
                self.assertEqual((first.name, digest(first)), (again.name, digest(again)))
                later = self.pack(generator, "3-" + generator, epoch="1796086400")
                self.assertNotEqual(digest(first), digest(later))  # the time does come from SOURCE_DATE_EPOCH

    def test_the_deb_has_each_part_at_its_place(self):
        package = self.deb()
        self.assertRegex(package.name, r"^dsv4(-cuda)?_%s-1_amd64\.deb$" % re.escape(VERSION))
        control = run("dpkg-deb", "-f", package)
        for line in [r"Version: %s-1" % re.escape(VERSION), r"Depends: libc6 \(>= 2\.\d+\).*libstdc\+\+6.*", "Recommends: dsv4-nano.*",
                     r"Description: inference engine for DeepSeek-V4 models"]:
            self.assertRegex(control, "(?m)^%s$" % line)
        name = re.search(r"^Package: (.*)$", control, re.M)[1]
        listing = run("dpkg-deb", "-c", package)
        for line in listing.splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root ")
        files = {line.split()[5] for line in listing.splitlines() if line.startswith("-")}
        wanted = {"./usr/bin/dsv4", "./usr/lib/systemd/system/dsv4.service", "./usr/share/bash-completion/completions/dsv4",
                  "./usr/share/zsh/vendor-completions/_dsv4", "./usr/share/fish/vendor_completions.d/dsv4.fish",
                  "./usr/share/man/man1/dsv4.1.gz"}
        wanted |= {"./usr/share/man/man1/dsv4-%s.1.gz" % command for command in COMMANDS}
        wanted |= {"./usr/share/doc/%s/%s" % (name, file) for file in ["copyright", "changelog.gz", "changelog.Debian.gz", "examples/gpu.conf"]}
        self.assertEqual(wanted - files, set())
        self.assertEqual({file for file in files if re.search(r"/include/|\.(a|h)\b|models/", file)}, set())

    def test_the_scripts_of_the_deb_are_right(self):
        run("dpkg-deb", "-e", self.deb(), self.tmp / "control")
        for script in ["postinst", "prerm", "postrm"]:
            path = self.tmp / "control" / script
            self.assertEqual(path.stat().st_mode & 0o777, 0o755)
            run("sh", "-n", path)
        self.assertNotIn("start dsv4", (self.tmp / "control" / "postinst").read_text().replace("try-restart dsv4", ""))

    def test_the_archive_is_one_folder_that_may_be_moved(self):
        package = self.pack("TGZ")
        self.assertEqual(package.name, "%s-%s-linux-x86_64.tar.gz" % (package.name.split("-" + VERSION)[0], VERSION))
        with tarfile.open(package) as archive:
            names = archive.getnames()
            self.assertEqual({name.split("/")[0] for name in names}, {package.name[:-len(".tar.gz")]})
            archive.extractall(self.tmp / "moved")
        (top,) = (self.tmp / "moved").iterdir()
        self.assertEqual(run(top / "bin" / "dsv4", "--version").split()[1], VERSION)
        nano = top / "share" / "dsv4" / "models" / "nano"
        nano.parent.mkdir(parents=True)
        nano.symlink_to(ROOT / "models" / "nano")
        self.assertEqual(run(top / "bin" / "dsv4", "tokenize", input="Hello"), run(BUILD / "dsv4", "tokenize", input="Hello"))

    def test_install_writes_pages_and_completions_of_the_program(self):
        prefix = self.tmp / "prefix"
        run("cmake", "--install", BUILD, "--prefix", prefix, "--component", "runtime")
        program = prefix / "bin" / "dsv4"
        for command in COMMANDS:
            page = gzip.decompress((prefix / "share" / "man" / "man1" / ("dsv4-%s.1.gz" % command)).read_bytes()).decode()
            self.assertEqual(page, run(program, "man", *command.split("-")))
        for shell, file in [("bash", "bash-completion/completions/dsv4"), ("zsh", "zsh/vendor-completions/_dsv4"),
                            ("fish", "fish/vendor_completions.d/dsv4.fish")]:
            self.assertEqual((prefix / "share" / file).read_text(), run(program, "completions", shell))
        self.assertFalse((prefix / "share" / "dsv4" / "models").exists())

    def test_a_wrong_word_is_an_error(self):
        done = subprocess.run([ROOT / "scripts" / "package", "rpm"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("unknown word 'rpm'; usage: scripts/package", done.stderr)


if __name__ == "__main__":
    unittest.main()
