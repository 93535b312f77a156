#!/usr/bin/env python3
"""Manual pages: `dsv4 man`."""

import re
import shutil
import subprocess
from pathlib import Path

from support import BENCH_PARTS, COMMANDS, CliTestCase, main

PAGES = [()] + [(name,) for name in COMMANDS] + [("bench", part) for part in BENCH_PARTS]


def plain(page):
    """The text of a page without roff's escapes."""
    page = re.sub(r"\\f[BIRP]|\\&", "", page)
    for escape, character in [(r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\(ha", "^"), (r"\(ti", "~"), (r"\e", "\\")]:
        page = page.replace(escape, character)
    return page


class Man(CliTestCase):
    def page(self, *words):
        return self.ok("man", *words).decode()

    def help_entries(self, *words):
        """{"--flag": its type and text} of --help."""
        text = self.ok(*words, "--help").decode()
        entries = re.findall(r"^  (-\S+(?: .*)?(?:\n {10,}.*)*)", text, re.MULTILINE)
        found = {}
        for entry in entries:
            names = re.match(r"\S+", entry)[0]
            found[names] = " ".join(entry[len(names):].split())
        return found

    def test_every_flag_has_its_line_with_the_text_of_the_help(self):
        for words in PAGES:
            page = plain(self.page(*words))
            entries = self.help_entries(*words)
            self.assertIn("-h,--help", entries, words)
            for names, text in entries.items():
                with self.subTest(words=words, names=names):
                    line = re.search(r"^\.TP\n%s((?: .*)?)\n(.*)$" % re.escape(", ".join(names.split(","))), page, re.MULTILINE)
                    self.assertIsNotNone(line)
                    shown = " ".join((line[1] + " " + line[2]).split())
                    # Help texts are wrapped, and CLI11 appends what a flag excludes or needs.
                    self.assertTrue(text.replace(" ...", "").startswith(shown.split(" ")[0]), (text, shown))
                    self.assertIn(line[2].strip(), text)

    def test_every_command_has_its_line_and_its_page(self):
        page = plain(self.page())
        for name in COMMANDS:
            self.assertRegex(page, r"(?m)^\.TP\ndsv4-%s\(1\)\n.+" % name)
        self.assertEqual(self.ok("man", "-o", self.tmp), b"")
        files = sorted(path.name for path in Path(self.tmp).glob("*.1"))
        self.assertEqual(files, sorted("-".join(("dsv4",) + words) + ".1" for words in PAGES))
        for words in PAGES:
            self.assertEqual((Path(self.tmp) / ("-".join(("dsv4",) + words) + ".1")).read_text(), self.page(*words))

    def test_old_flags_are_in_no_page(self):
        for words in PAGES:
            self.assertNotRegex(plain(self.page(*words)), r"--exchange\b|--cut-interval\b")

    def test_pages_have_an_example(self):
        for words in PAGES:
            self.assertRegex(self.page(*words), r"\.SH EXAMPLE\n\.EX\n.*dsv4 ", words)

    def test_the_formatter_has_no_warnings(self):
        groff = shutil.which("groff")
        if groff is None:
            self.skipTest("groff is not installed")
        for words in PAGES:
            page = self.page(*words)
            result = subprocess.run([groff, "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=3", "-Kutf8"], input=page.encode(), capture_output=True, timeout=60)
            self.assertEqual((result.returncode, result.stderr), (0, b""), words)
            shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", result.stdout.decode())
            self.assertIn("--help", shown)

    def test_man_shows_them(self):
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        self.ok("man", "-o", self.tmp)
        for path in Path(self.tmp).glob("*.1"):
            result = subprocess.run(["man", "--warnings", "-l", str(path)], capture_output=True, timeout=60,
                                    env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual((result.returncode, result.stderr), (0, b""), path)

    def test_apropos_finds_them(self):
        lexgrog = shutil.which("lexgrog")
        if lexgrog is None:
            self.skipTest("man-db is not installed")
        self.ok("man", "-o", self.tmp)
        for path in Path(self.tmp).glob("*.1"):
            out = subprocess.run([lexgrog, str(path)], capture_output=True, timeout=60, text=True).stdout
            self.assertIn(": \"%s - " % path.stem, out)

    def test_errors(self):
        self.fails(2, ["there is no command 'dsv4 serv'", "did you mean serve?"], "man", "serv")
        self.fails(2, ["'dsv4 serve x'"], "man", "serve", "x")
        self.fails(2, ["man -o writes all pages"], "man", "serve", "-o", self.tmp)
        self.fails(1, ["/no/such/folder"], "man", "-o", "/no/such/folder")


if __name__ == "__main__":
    main()
