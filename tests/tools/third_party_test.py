#!/usr/bin/env python3
"""Compares what the program is made of with NOTICE and THIRD-PARTY: third_party_test.py SOURCES BUILD NINJA TARGET...

Every archive on the link lines of the targets, and every folder of headers that our files include, is a part that
NOTICE lists and whose licence THIRD-PARTY holds. Exit status 77: the build is not Ninja's.
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

SOURCES, BUILD, NINJA = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
TARGETS = sys.argv[4:]
# Folders of /usr/include: the C and C++ libraries and the kernel, which are not linked in; and parts of NOTICE.
NOT_CONTAINED = re.compile(r"(c\+\+|bits|gnu|sys|linux|asm|asm-generic|arpa|net|netinet|rpc|misc|finclude|[a-z0-9_]+-linux-gnu)$")
FOLDERS = {"boost": "Boost", "nlohmann": "nlohmann-json", "CLI": "CLI11", "openssl": "OpenSSL 3"}
# The licence texts of these need not accompany a program.
WITHOUT_TEXT = {"Boost", "CUDA runtime"}


def notice():
    """Returns the parts of NOTICE's table, and the part of each archive."""
    parts, archives = [], {}
    for line in (SOURCES / "NOTICE").read_text(encoding="utf-8").splitlines():
        cells = re.split(r" {2,}", line.strip())
        if len(cells) >= 3 and cells[0] != "part":
            parts.append(cells[0])
            archives.update((name, cells[0]) for name in (cells[3].split() if len(cells) > 3 else []))
    return parts, archives


def ninja(*words):
    return subprocess.run([NINJA, "-C", BUILD, "-t", *words], capture_output=True, text=True, check=True).stdout


def members(path):
    """The names in an archive. The C library has empty ones (librt.a), whose code is in libc.so."""
    return subprocess.run(["ar", "t", BUILD / path], capture_output=True, text=True, check=True).stdout


def text_of(part):
    return re.sub(r" [0-9.]+$", "", part)


class Contents(unittest.TestCase):
    def test_archives_are_in_the_notice(self):
        _, archives = notice()
        third_party = (BUILD / "install/THIRD-PARTY").read_text(encoding="utf-8")
        found = set()
        for target in TARGETS:
            link = ninja("commands", "-s", target)
            paths = {word for word in link.split() if word.endswith(".a")}
            self.assertTrue(paths, link)
            found |= {Path(path).name for path in paths if members(path)}
        # Our own libraries are libdsv4_*.a, and XGrammar's has a line in NOTICE.
        foreign = {name for name in found if not name.startswith("libdsv4_") or name in archives}
        self.assertIn("libz.a", foreign)
        for name in sorted(foreign):
            self.assertIn(name, archives, "NOTICE has no line with the archive " + name)
            part = text_of(archives[name])
            if part not in WITHOUT_TEXT:
                section = re.search(r"^==== %s ====\n\n(.*?)(?=^==== |\Z)" % re.escape(part), third_party, re.M | re.S)
                self.assertIsNotNone(section, "THIRD-PARTY has no text of " + part)
                self.assertNotIn("was not found when this file was made", section[1])
                self.assertGreater(len(section[1]), 40, part)

    def test_included_folders_are_in_the_notice(self):
        parts, _ = notice()
        third_party = (BUILD / "install/THIRD-PARTY").read_text(encoding="utf-8")
        folders, ours = set(), False
        for line in ninja("deps").splitlines():
            if line and not line.startswith(" "):
                ours = not line.startswith(("tests/", "bench/"))
            elif ours and (header := re.match(r" +/usr/(?:local/)?include/([^/]+)/", line)):
                folders.add(header[1])
        self.assertIn("nlohmann", folders)
        for folder in sorted(f for f in folders if not NOT_CONTAINED.match(f)):
            self.assertIn(folder, FOLDERS, "NOTICE and this test do not know /usr/include/" + folder)
            part = FOLDERS[folder]
            self.assertIn(part, parts)
            if part not in WITHOUT_TEXT:
                self.assertIn("==== %s ====" % text_of(part), third_party)


if __name__ == "__main__":
    if not (BUILD / "build.ninja").exists():
        sys.exit(77)
    unittest.main(argv=["third_party"])
