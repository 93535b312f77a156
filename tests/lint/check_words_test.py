"""Every pattern of tools/lint/check_words.py reports a small tree, clean text passes, and budgets may only fall."""

import contextlib
import io
import json
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "lint" / "check_words.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import check_words  # noqa: E402  (found through the line above)
from tree import TreeTestCase  # noqa: E402

GOOD = {
    "README.md": "# Title\n\nThe engine reads a checkpoint and returns text.\n",
    "docs/page.md": "# Page\n\nA sequence has up to 128 rows. Write `behind` or `anew` in code.\n",
    "src/base/check.h": "#pragma once\n// Returns the number of rows, at most 128.\nint Rows();\n",
    "server/page/page.js": "// Shows the reply.\nconst text = `the reply of the model`;\n",
    "scripts/run": "#!/usr/bin/env bash\n# Runs the tests.\necho run\n",
    "tools/tool.py": '"""Prints the number of rows."""\n# Counts rows.\n',
    check_words.BUDGETS: '{\n  "docs": {"A": 0, "B": 0},\n  "src": {"A": 0, "B": 0}\n}\n',
}

# For each pattern a text with one hit of it and no hit of another pattern.
FIRES = {
    "A1": "Of each rank one part.",
    "A2": "There are rows, of which one is read.",
    "A3": "The table is built anew.",
    "A4": "A longer draft is worth while.",
    "A5": "Same errors as of Load.",
    "A6": "The figures are at hand.",
    "A7": "It was used lately.",
    "A8": "It waits for ever.",
    "A9": "Rows are read likewise.",
    "A10": "It has so many rows.",
    "A11": "It has as many rows.",
    "A12": "It counts from then on.",
    "A13": "A copy is under way.",
    "A14": "The bytes are on their way.",
    "A15": "Then nobody reads it.",
    "A16": "Two threads take turns.",
    "A17": "The figure stands here.",
    "A18": "It names what becomes of a file.",
    "A19": "The host works meanwhile.",
    "A20": "All rows but for one.",
    "B1": "The row behind the last one.",
    "B2": "The CPU works beside the GPU.",
    "B3": "The kernel in front ends first.",
    "B4": "The row lies in a page.",
    "B5": "The header tells the size.",
    "B6": "It is read. What a layer holds is freed.",
    "B7": "It is read. Who calls it waits.",
    "B8": "Rows and those that follow.",
    "B9": "It is skipped where it is empty.",
    "B10": "The stream goes on.",
    "B11": "Both kernels are alike.",
    "B12": "A decision is to be made.",
    "B13": "The plan prints an op a line.",
    "B14": "The row was asked for.",
    "B15": "A copy brings the row.",
    "B16": "All rows are read by then.",
    "B17": "The host waits, and so does the GPU.",
}


class CheckWords(TreeTestCase):
    GOOD = GOOD

    def errors(self):
        return check_words.run(self.root)

    def budgets(self, **folders):
        """Writes the budgets: src=(A, B)."""
        entries = {name: {"A": a, "B": b} for name, (a, b) in folders.items()}
        self.write(check_words.BUDGETS, json.dumps(entries))

    def read_budgets(self):
        return json.loads((self.root / check_words.BUDGETS).read_text(encoding="utf-8"))

    def hits(self, name, text):
        return [(line, pattern) for line, pattern, _, _ in check_words.hits_of(Path(name), text)]

    def test_good_tree_is_clean(self):
        self.assertEqual(self.errors(), [])

    def test_every_pattern_has_a_sample(self):
        self.assertEqual(list(FIRES), [pattern for pattern, *_ in check_words.PATTERNS])

    def test_every_pattern_fires_and_only_that_one(self):
        for pattern, text in FIRES.items():
            with self.subTest(pattern):
                self.assertEqual(self.hits("docs/bad.md", f"# Bad\n\n{text}\n"), [(3, pattern)])
                self.assertEqual(self.hits("src/bad.cc", f"int x;\n// {text}\n"), [(2, pattern)])
                self.assertEqual(self.hits("tools/bad.py", f"x = 1\n# {text}\n"), [(2, pattern)])
                self.assertEqual(self.hits("scripts/bad", f"#!/bin/sh\n# {text}\n"), [(2, pattern)])

    def test_a_hit_fails_with_its_place_and_remedy(self):
        for pattern, text in FIRES.items():
            with self.subTest(pattern):
                self.write("src/base/bad.cc", f"\n// {text}\n")
                errors = self.errors()
                self.assertEqual(len(errors), 2, errors)
                self.assertTrue(errors[0].startswith(f"src/base/bad.cc:2: [{pattern}] "), errors[0])
                self.assertTrue(errors[0].endswith(next(p[3] for p in check_words.PATTERNS if p[0] == pattern)))
                self.assertTrue(errors[1].startswith("src: [budget] 1 hits of group " + pattern[0]), errors[1])

    def test_correct_uses_pass(self):
        for text in ("Of course it is read.", "The letter T stands for tokens.", "A server behind a reverse proxy.",
                     "It tells you the size.", "Rows so long that they wrap.", "What is measured: rows.",
                     "The folders where they were found."):
            with self.subTest(text):
                self.assertEqual(self.hits("docs/good.md", text + "\n"), [])

    def test_code_spans_and_fences_are_no_text(self):
        self.assertEqual(self.hits("docs/good.md", "The flag `--behind` and `lies`.\n\n```\nnobody, anew\n```\n"), [])
        self.assertEqual(self.hits("docs/bad.md", "```\nanew\n```\n\nBuilt anew.\n"), [(5, "A3")])

    def test_code_is_no_text(self):
        self.assertEqual(self.hits("src/good.cc", "int behind = anew(beside);\nchar c = 'x';\n"), [])
        self.assertEqual(self.hits("src/good.cc", 'auto k = R"(nobody is behind it)";\n'), [])
        self.assertEqual(self.hits("tools/good.py", "behind = anew\n"), [])
        self.assertEqual(self.hits("scripts/good", "#!/bin/sh\nbehind=nobody\n"), [])

    def test_messages_are_text_and_short_strings_are_not(self):
        self.assertEqual(self.hits("src/bad.cc", 'F("the row lies in a page");\n'), [(1, "B4")])
        self.assertEqual(self.hits("src/good.cc", 'F("behind", "a/behind/b.h");\n'), [])
        self.assertEqual(self.hits("src/bad.cc", 'F("the table of rows is "\n  "built anew");\n'), [(2, "A3")])

    def test_line_numbers_of_comments_that_span_lines(self):
        self.assertEqual(self.hits("src/bad.cc", "int x;\n// One row, at\n// hand.\n// Two rows, built\n// anew.\n"),
                         [(5, "A3"), (2, "A6")])
        self.assertEqual(self.hits("src/bad.cc", "/* Rows are read.\n   They are built\n   anew. */\n"), [(3, "A3")])
        self.assertEqual(self.hits("docs/bad.md", "# Bad\n\nRows are so\nmany.\n"), [(3, "A10")])
        self.assertEqual(self.hits("tools/bad.py", '"""Reads rows.\n\nThey are built anew.\n"""\n'), [(3, "A3")])

    def test_comments_with_code_between_are_two_texts(self):
        self.assertEqual(self.hits("src/good.cc", "// Rows, so\nint x;\n// many.\n"), [])

    def test_links_and_cells(self):
        self.assertEqual(self.hits("docs/good.md", "Read [the page](behind.md).\n"), [])
        self.assertEqual(self.hits("docs/bad.md", "| a | b |\n|---|---|\n| at | hand |\n| x | at hand |\n"), [(4, "A6")])

    def test_more_than_the_budget_fails(self):
        self.budgets(src=(1, 1), docs=(0, 0))
        self.write("src/base/bad.cc", "// Built anew. It lies here.\n")
        self.assertEqual(self.errors(), [])
        self.write("src/base/worse.cc", "// Built anew.\n")
        errors = self.errors()
        self.assertEqual([e.split(":")[0] for e in errors], ["src/base/bad.cc", "src/base/worse.cc", "src"])
        self.assertIn("2 hits of group A; the budget is 1", errors[-1])

    def test_less_than_the_budget_fails_and_names_write(self):
        self.budgets(src=(2, 0), docs=(0, 0))
        self.write("src/base/bad.cc", "// Built anew.\n")
        errors = self.errors()
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(check_words.BUDGETS), errors[0])
        self.assertIn("src has 1 hits of group A", errors[0])
        self.assertIn("--write", errors[0])

    def test_write_lowers_budgets(self):
        self.budgets(src=(3, 5), docs=(0, 1))
        self.write("src/base/bad.cc", "// Built anew.\n")
        self.assertEqual(check_words.write(self.root), [])
        budgets = self.read_budgets()
        self.assertEqual((budgets["src"], budgets["docs"]), ({"A": 1, "B": 0}, {"A": 0, "B": 0}))
        self.assertEqual(self.errors(), [])

    def test_write_never_raises_a_budget(self):
        self.budgets(src=(1, 0), docs=(0, 0))
        self.write("src/base/bad.cc", "// Built anew, anew. It lies here.\n")
        self.assertEqual(check_words.write(self.root), ["src"])
        self.assertEqual(self.read_budgets()["src"], {"A": 1, "B": 0})
        self.assertNotEqual(self.errors(), [])

    def test_a_folder_counts_under_its_longest_entry(self):
        self.budgets(**{"src": (0, 0), "src/base": (1, 0)})
        self.write("src/base/bad.cc", "// Built anew.\n")
        self.assertEqual(self.errors(), [])

    def test_contracts_of_ops_count_by_themselves(self):
        self.budgets(**{"src": (0, 0), "src/ops": (0, 0), "src/ops/contracts": (1, 0)})
        self.write("src/ops/rope/rope.h", "// Built anew.\n")
        self.assertEqual(self.errors(), [])
        self.write("src/ops/rope/rope_ref.cc", "// Built anew.\n")
        self.assertIn("src/ops: [budget]", self.errors()[-1])

    def test_pages_that_quote_are_skipped(self):
        self.write("docs/style.md", "# Style\n\nDo not write anew.\n")
        self.assertEqual(self.errors(), [])

    def test_long_sentences(self):
        text = "# Long\n\nShort one.\nA sentence " + "of words " * 12 + "ends here. Short again.\n"
        found = check_words.long_sentences(Path("docs/x.md"), text, 25)
        self.assertEqual([(line, words) for line, words, _ in found], [(4, 28)])
        self.assertEqual(list(check_words.long_sentences(Path("docs/x.md"), text, 28)), [])

    def test_exit_status(self):
        def run(*arguments):
            return subprocess.run([sys.executable, "-B", str(SCRIPT), "--root", str(self.root), *arguments],
                                  capture_output=True, text=True, check=False)
        self.assertEqual(run().returncode, 0)
        self.assertEqual(run(str(self.root / "docs/page.md")).returncode, 0)
        self.write("src/base/bad.cc", "// Built anew.\n")
        self.assertEqual(run().returncode, 1)
        found = run(str(self.root / "src/base/bad.cc"))
        self.assertEqual((found.returncode, found.stdout), (1, "src/base/bad.cc:1: [A3] 'anew': again\n"))
        self.assertEqual(run("--write").returncode, 1)
        self.assertEqual(run("--list", "src").stdout.split()[0], "src/base/bad.cc:1:")

    def test_counts(self):
        self.write("src/base/bad.cc", "// Built anew. It lies here.\n")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            check_words.print_counts(self.root)
        self.assertEqual(out.getvalue().splitlines()[-1].split(), ["1", "1", "all"])


if __name__ == "__main__":
    unittest.main()
