"""Every rule of tools/lint/check_docs.py reports a small tree that breaks it, and a good tree passes."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "lint"))
import check_docs  # noqa: E402  (found through the line above)
from tree import TreeTestCase  # noqa: E402

GOOD = {
    "README.md": "# Title\n\n[page](docs/page.md#a-heading-with-code) [web](https://example.com/x#y) `docs/page.md`\n",
    "docs/page.md": "# Page\n\n## A heading, with `code`\n\n[up](../README.md) [here](#page)\n\n| " + "x " * 90 + "|\n",
    "docs/code.md": "# Code\n\n```\n[no link](gone.md) " + "x " * 90 + "\n```\n",
    "src/base/check.h": "// Checks.\n",
}


class CheckDocs(TreeTestCase):
    GOOD = GOOD

    def errors(self):
        return check_docs.run(self.root)

    def test_good_tree_is_clean(self):
        self.assertEqual(self.errors(), [])

    def test_issues_and_jobs(self):
        for text in ("bar of iss" "ue 3", "see iss" "ue #12", "measured (jo" "b lead-15)", "jo" "bs pre-4, pre-7"):
            with self.subTest(text):
                self.expect("docs/bad.md", f"# Bad\n\n{text}\n", "reference", 3)
                (self.root / "docs/bad.md").unlink()
                self.expect("src/base/bad.cc", f"\n// {text}\n", "reference", 2)
                (self.root / "src/base/bad.cc").unlink()

    def test_words_alone_are_fine(self):
        self.write("docs/good.md", "# Good\n\nMost iss" "ues and jo" "bs are small; a jo" "b of 3 steps\n")
        self.assertEqual(self.errors(), [])

    def test_files_outside(self):
        self.expect("tools/bad.py", "PATH = '../shar" "ed/data'\n", "reference", 1)

    def test_tests_may_look_for_data_beside_the_repository(self):
        self.write("tests/support/fixture.h", 'auto p = DIR "/../shar" "ed/fixtures";\n// ../shar' "ed/fixtures\n")
        self.assertEqual(self.errors(), [])

    def test_link_to_a_missing_page(self):
        self.expect("docs/bad.md", "# Bad\n\n[gone](gone.md)\n", "link", 3)

    def test_link_out_of_the_repository(self):
        self.expect("docs/bad.md", "# Bad\n\n[out](../../)\n", "link", 3)

    def test_link_to_a_missing_heading(self):
        self.expect("docs/bad.md", "# Bad\n[x](page.md#gone)\n", "link", 2)

    def test_link_to_a_missing_heading_of_the_page(self):
        self.expect("docs/bad.md", "# Bad\n[x](#gone)\n", "link", 2)

    def test_missing_picture(self):
        self.expect("docs/bad.md", "# Bad\n![x](gone.png)\n", "link", 2)

    def test_path_in_code(self):
        self.expect("docs/bad.md", "# Bad\n`src/base/gone.h`\n", "path", 2)

    def test_names_that_no_source_has(self):
        self.write("src/base/names.cc", "int GoodOne(); // --threads DSV4_ISA dsv4_steps_total\n")
        self.write("docs/good.md", "# Good\n`GoodOne(x)`, `--threads N`, `DSV4_ISA=x`,\n"
                                   "`dsv4_steps_total{a}`, `dsv4_step*`\n")
        self.assertEqual(self.errors(), [])
        for name in ("GoodOn" "es", "Good::OneGo" "ne", "--thre" "ad", "DSV4_I" "S", "dsv4_step_t" "otal"):
            with self.subTest(name):
                self.expect("docs/bad.md", f"# Bad\n\nThat is `{name}`.\n", "name", 3)

    def test_pages_of_the_past_may_name_what_is_gone(self):
        for page in ("CHANGELOG.md", "bench/notes/x.md"):
            self.write(page, "# Old\n\n`OneGo" "ne` and `--gone`\n")
        self.assertEqual(self.errors(), [])

    def test_long_line(self):
        self.expect("docs/bad.md", "# Bad\n\n" + "word " * 24 + "x\n", "line", 3)

    def test_long_row(self):
        self.expect("docs/bad.md", "# Bad\n\n| a | b |\n|---|---|\n| " + "word " * 40 + "|\n", "line", 5)

    def test_a_row_of_the_limit(self):
        self.write("docs/good.md", "# Good\n\n| a |\n|---|\n| " + "word " * 39 + "wo|\n")
        self.assertEqual(self.errors(), [])

    def test_a_line_of_the_limit(self):
        self.write("docs/good.md", "# Good\n\n" + "word " * 23 + "words\n")
        self.assertEqual(self.errors(), [])


if __name__ == "__main__":
    unittest.main()
