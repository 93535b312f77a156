#!/usr/bin/env python3
"""The tools that make recordings of agents: scrubbed texts, and the environments that clients are installed in."""

import json
import lzma
import re
import tempfile
import unittest
from pathlib import Path
import sys

import clients_venv
import scrub
from support import main

RECORDINGS = Path(__file__).resolve().parent / "recordings"
PROSE = "You are a careful assistant.\n\n - Never delete files; 12 of them are IMPORTANT (see Notes).\n"


class Scrub(unittest.TestCase):
    def test_words_change_and_sizes_stay(self):
        new = scrub.scrub_text(PROSE)
        self.assertEqual([len(w) for w in re.findall(r"\w+|\W", new)], [len(w) for w in re.findall(r"\w+|\W", PROSE)])
        kept = set(re.findall(r"[A-Za-z]{4,}", PROSE.lower())) & set(re.findall(r"[A-Za-z]{4,}", new.lower()))
        self.assertEqual(kept, set())

    def test_texts_that_begin_alike_still_do_and_part_where_they_did(self):
        a, b = scrub.scrub_text(PROSE + "One ending of it."), scrub.scrub_text(PROSE + "Two ending of it.")
        self.assertEqual(a[:len(PROSE)], b[:len(PROSE)])
        self.assertNotEqual(a[len(PROSE):].split(), b[len(PROSE):].split())
        self.assertFalse(set(a[len(PROSE):].split()) & set(b[len(PROSE):].split()))

    def test_structure_stays(self):
        body = {"type": "tool_use", "id": "toolu_01", "path": "/tmp/a.txt", "count": 3, "text": PROSE,
                "arguments": json.dumps({"cmd": "cat a file", "n": [1, None]}), "url": "data:image/png;base64,AAAA"}
        new = scrub.scrub(body)
        self.assertEqual({k for k in body if new[k] != body[k]}, {"text", "arguments"})
        inner = json.loads(new["arguments"])
        self.assertEqual((inner["n"], len(inner["cmd"])), ([1, None], 10))

    def test_recordings_are_small_and_hold_words_of_the_list_only(self):
        known = set().union(*scrub.words_by_length().values())
        for path in RECORDINGS.glob("*.xz"):
            self.assertLess(path.stat().st_size, 200000)
            texts = []
            for request in json.loads(lzma.decompress(path.read_bytes())):
                scrub.map_texts(request["body"], lambda text: texts.append(text) or text)
            words = [w.lower() for text in texts for w in re.findall(r"[^\W\d_]+", text)]
            self.assertGreater(len(words), 100000)
            foreign = {w for w in words if len(w) < 12 and w not in known}
            # A text that was not scrubbed has hundreds of foreign words.
            self.assertLess(len(foreign), 100, sorted(foreign)[:20])


class Environments(unittest.TestCase):
    def test_a_package_is_known_by_its_name_and_version(self):
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder) / "other_name-1.5.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-name\nVersion: 1.5\n")
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            self.assertEqual(clients_venv.missing(["other-name==1.5", "other_name[x]==1.5", "other-name"]), [])
            self.assertEqual(clients_venv.missing(["other-name==1.6", "no-such-name==1"]), ["other-name==1.6", "no-such-name==1"])


if __name__ == "__main__":
    main()
