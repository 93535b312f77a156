"""Shared by the tests of the lints: a small tree in a temporary folder."""

import tempfile
import unittest
from pathlib import Path


class TreeTestCase(unittest.TestCase):
    """A test begins with the files of GOOD {name: text}; errors() returns the findings of the lint in that tree."""

    GOOD = {}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dsv4 lint ")  # the space is on purpose
        self.root = Path(self.folder.name)
        for name, text in self.GOOD.items():
            self.write(name, text)

    def tearDown(self):
        self.folder.cleanup()

    def errors(self):
        raise NotImplementedError

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def expect(self, name, text, rule, line):
        """Writes one file; the tree must then have exactly one error: of this rule, at this line."""
        self.write(name, text)
        errors = self.errors()
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(f"{name}:{line}: [{rule}]"), errors[0])
