#!/usr/bin/env python3
"""Tests scripts/setup with packages that are missing or cannot be installed.

A copy of its folder runs with small programs that stand in for dpkg-query, apt-get and sudo.
"""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
STAND_INS = {
    # dpkg-query -W -f=FORMAT -- NAME
    "dpkg-query": 'for name; do :; done\ngrep -qx "$name" "$STATE/installed" && printf installed',
    # apt-get ... install --no-install-recommends NAME...: installs all or none, like apt-get.
    "apt-get": '''case " $* " in
  *" download "*) [ ! -e "$STATE/boost.deb" ] || cp "$STATE/boost.deb" . ; exit ;;
  *" install "*) ;;
  *) exit 0 ;;
esac
names=${*##*--no-install-recommends }
echo "$names" >> "$STATE/asked"
for name in $names; do grep -qx "$name" "$STATE/gone" && exit 100; done
printf '%s\\n' $names >> "$STATE/installed"''',
    "apt-cache": 'echo "  Depends: libboost1.74-dev"',
    "sudo": '[ "$1" = -n ] && shift\nexec "$@"',
}


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "scripts").mkdir()
        for name in ["setup", "common.sh"]:
            shutil.copy(SCRIPTS / name, self.root / "scripts" / name)
        self.write("scripts/fetch_xgrammar", "echo fetched")
        for name, text in STAND_INS.items():
            self.write("bin/" + name, text)
        for name in ["installed", "gone", "asked"]:
            (self.root / name).touch()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/usr/bin/env bash\n" + text + "\n")
        path.chmod(0o755)

    def lines(self, name):
        return (self.root / name).read_text().split("\n")[:-1]

    def run_setup(self, *words, gone=()):
        (self.root / "gone").write_text("".join(name + "\n" for name in gone))
        path = "%s:%s" % (self.root / "bin", os.environ["PATH"])
        result = subprocess.run(["bash", self.root / "scripts" / "setup", *words], stdin=subprocess.DEVNULL, capture_output=True,
                                timeout=600, env={**os.environ, "PATH": path, "STATE": str(self.root)})
        return result.returncode, (result.stdout + result.stderr).decode()

    def test_what_is_missing_is_installed_at_once_and_then_nothing_is(self):
        code, said = self.run_setup("lint")
        self.assertEqual((code, "fetched" in said), (0, True), said)
        self.assertEqual(len(self.lines("asked")), 1)
        for name in ["g++", "libedit-dev", "shellcheck"]:
            self.assertIn(name, self.lines("installed"))
        self.assertEqual(self.run_setup("lint")[0], 0)
        self.assertEqual(len(self.lines("asked")), 1)

    def test_an_optional_package_that_is_not_to_be_had_costs_itself_only(self):
        code, said = self.run_setup(gone=["node-dompurify"])
        self.assertEqual((code, "fetched" in said), (0, True), said)
        self.assertIn("continuing without node-dompurify:", said)
        for name in ["g++", "libedit-dev", "libssl-dev", "libzmq5", "libjs-marked", "libjs-katex", "node-prismjs"]:
            self.assertIn(name, self.lines("installed"))

    def test_boost_is_unpacked_without_the_folders_that_nothing_reads(self):
        for folder in ["beast", "spirit"]:
            (self.root / "tree/usr/include/boost" / folder).mkdir(parents=True)
        (self.root / "tree/usr/include/boost/beast.hpp").touch()
        (self.root / "tree/DEBIAN").mkdir()
        (self.root / "tree/DEBIAN/control").write_text(
            "Package: boost\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: test\n")
        subprocess.run(["dpkg-deb", "-b", self.root / "tree", self.root / "boost.deb"], check=True, capture_output=True)
        code, said = self.run_setup()
        self.assertEqual(code, 0, said)
        boost = self.root / "build/deps/boost/include/boost"
        self.assertEqual(sorted(entry.name for entry in boost.iterdir()), ["beast", "beast.hpp"])
        self.assertNotIn("libboost-dev", self.lines("installed"))

    def test_boost_that_cannot_be_downloaded_is_installed(self):
        code, said = self.run_setup()
        self.assertEqual((code, "libboost-dev" in self.lines("installed")), (0, True), said)

    def test_a_build_needs_no_packages_of_the_tests(self):
        code, said = self.run_setup("build")
        self.assertEqual((code, "fetched" in said), (0, True), said)
        installed = self.lines("installed")
        for name in ["g++", "git", "libssl-dev", "node-dompurify"]:
            self.assertIn(name, installed)
        for name in ["ccache", "libgtest-dev", "libgmock-dev", "libzmq5"]:
            self.assertNotIn(name, installed)

    def test_a_package_that_it_needs_is_named(self):
        code, said = self.run_setup(gone=["ccache"])
        self.assertEqual(code, 1, said)
        self.assertIn("ccache", said.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
