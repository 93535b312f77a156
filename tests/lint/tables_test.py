"""tools/docs/tables.py makes tables of figures, and reports everything that breaks the rules of its README."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "docs"))
import tables  # noqa: E402  (found through the line above)

README = "# Results\n\n| machine | |\n|---|---|\n| `H200` | one |\n"


def figure(what="step", value=2.0, unit="ms", limit=1.0, **changes):
    return {"commit": "4b948c2584", "machine": "H200", "command": "dsv4 bench", "what": what, "value": value,
            "unit": unit, "limit": limit, **changes}


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dsv4 tables ")
        self.root = Path(self.folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        (self.root / "docs").mkdir()
        (self.root / "bench/results/README.md").write_text(README)
        self.page = self.root / "docs/page.md"

    def tearDown(self):
        self.folder.cleanup()

    def figures(self, *lines, name="steps"):
        (self.root / f"bench/results/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def table(self, marker, *lines):
        """Returns the table that `marker` makes of these figures."""
        self.figures(*lines)
        self.page.write_text(f"text\n<!-- {marker} -->\nold\n<!-- end -->\nmore\n")
        self.assertEqual(tables.run(self.root, True), [])
        text = self.page.read_text()
        self.assertTrue(text.startswith("text\n") and text.endswith("<!-- end -->\nmore\n"), text)
        return text.splitlines()[2:-2]

    def test_rows(self):
        self.assertEqual(self.table('table steps limit="floor"', figure(), figure("rate", 300.0, "GB/s", 400.0)), [
            "| | figure | floor | how |", "|---|---|---|---|",
            "| step | 2.00 ms | 1.00 ms, 50.0 % | a |", "| rate | 300 GB/s | 400 GB/s, 75.0 % | a |", "",
            "- a: `dsv4 bench` (4b948c2, H200)"])

    def test_a_bar_has_no_share(self):
        self.assertIn("| step | 2.00 ms | 1.00 ms | a |", self.table('table steps limit="bar"', figure()))

    def test_rows_and_columns(self):
        made = self.table('table steps grid limit="floor"', figure("a @ one"), figure("b @ two", command="other"),
                          figure("a @ two", 4.0, limit=None))
        self.assertEqual(made, [
            "| | one | two | how |", "|---|---|---|---|", "| a | 2.00 ms, 50.0 % | 4.00 ms | a |",
            "| b |  | 2.00 ms, 50.0 % | b |", "", "Percentages are shares of the floor.", "",
            "- a: `dsv4 bench` (4b948c2, H200)", "- b: `other` (4b948c2, H200)"])

    def test_numbers(self):
        for value, text in ((13841, "13,841"), (0, "0"), (0.0187, "0.019"), (1621.0, "1,621"), (30.2, "30.2"),
                            (0.00021, "0.00021"), (5.0, "5.00"), (999.9, "1000")):
            self.assertEqual(tables.number_text(value), text)

    def test_a_table_that_differs(self):
        self.table("table steps", figure())
        self.assertEqual(tables.run(self.root, False), [])
        self.figures(figure(value=3.0))
        self.assertEqual(len(tables.run(self.root, False)), 1)
        self.page.write_text(self.page.read_text().replace("2.00", "3.00"))
        self.assertEqual(tables.run(self.root, False), [])

    def test_bad_figures(self):
        good = figure()
        for bad in (figure(commit="main"), figure(machine="mine"), figure(value="2"), figure(value=True),
                    figure(limit="1"), figure(unit="parsecs"), figure(job=1), dict(reversed(good.items())), [1], 5):
            with self.subTest(bad):
                self.figures(bad)
                self.page.write_text("<!-- table steps -->\n<!-- end -->\n")
                found = tables.run(self.root, True)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith("bench/results/steps.jsonl:1:"), found)

    def test_files_and_tables_belong_together(self):
        self.table("table steps", figure())
        self.figures(figure(), name="unused")
        self.assertEqual(len(tables.run(self.root, False)), 1)
        (self.root / "bench/results/unused.jsonl").unlink()
        (self.root / "bench/results/raw.json").write_text("{}")
        self.assertEqual(len(tables.run(self.root, False)), 1)
        (self.root / "bench/results/raw.json").unlink()
        self.page.write_text(self.page.read_text() + "<!-- table gone -->\n<!-- end -->\n")
        self.assertEqual(len(tables.run(self.root, False)), 1)

    def test_a_table_without_an_end(self):
        self.figures(figure())
        self.page.write_text("<!-- table steps -->\ntext\n")
        self.assertIn("has no", "\n".join(tables.run(self.root, True)))
        self.assertEqual(self.page.read_text(), "<!-- table steps -->\ntext\n")


if __name__ == "__main__":
    unittest.main()
