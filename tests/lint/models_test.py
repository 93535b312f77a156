"""tools/docs: the tensors of the published checkpoints, and the tables of docs/models.md."""

import gzip
import json
import lzma
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "docs"))
import models  # noqa: E402  (found through the line above)
import published  # noqa: E402

# Headers of published checkpoints, next to the repository.
HEADERS = ROOT.parent / "shared" / "data" / "published"
# Tensors and bytes in the index of each repository.
TOTALS = {
    "deepseek-ai/DeepSeek-V4-Flash": (69187, 159609485896), "deepseek-ai/DeepSeek-V4-Flash-0731": (72317, 166878536440),
    "nvidia/DeepSeek-V4-Flash-NVFP4": (135235, 168266793544), "nvidia/DeepSeek-V4-Flash-0731-NVFP4": (138365, 175535844088),
    "0xSero/DeepSeek-V4-Flash-0731-REAP": (45821, 107803320952), "deepseek-ai/DeepSeek-V4-Pro": (145116, 864704792696),
    "deepseek-ai/DeepSeek-V4-Pro-0813": (149782, 892727580904),
}


def read(*parts):
    path = HEADERS.joinpath(*parts)
    if not path.exists():
        raise unittest.SkipTest(f"{path} is absent")
    return path


class Published(unittest.TestCase):
    reap = next(c for c in published.CHECKPOINTS if c.num_experts == 160)

    def test_tensors_and_bytes_are_those_of_the_index(self):
        lists = {c.repository: published.tensors(c) for c in published.CHECKPOINTS if c.repository in TOTALS}
        self.assertEqual({name: (len(tensors), sum(map(published.num_bytes, tensors))) for name, tensors in lists.items()},
                         TOTALS)

    def test_names_types_and_shapes_are_those_of_the_headers(self):
        shards = json.loads(lzma.open(read("reap160", "headers.json.xz")).read())
        headers = {name: (t[0], tuple(t[1])) for shard in shards.values() for name, t in shard["header"].items()}
        self.assertEqual({name: (dtype, dims) for name, dtype, dims in published.tensors(self.reap)}, headers)

    def test_config_has_the_published_values(self):
        config = json.loads(read("reap160", "config.json").read_text())
        ours = published.config(self.reap)
        self.assertEqual(ours, {field: config.get(field) for field in ours})

    def test_files_have_holes_and_true_headers(self):
        with tempfile.TemporaryDirectory() as folder:
            published.write_sparse(self.reap, Path(folder))
            files = sorted(Path(folder).glob("*.safetensors"))
            self.assertEqual(len(files), 48)
            self.assertLess(sum(512 * path.stat().st_blocks for path in files), 50_000_000)
            names = 0
            for path in files:
                with open(path, "rb") as file:
                    size = int.from_bytes(file.read(8), "little")
                    header = json.loads(file.read(size))
                end = max(t["data_offsets"][1] for t in header.values())
                self.assertEqual(path.stat().st_size, 8 + size + end)
                names += len(header)
            self.assertEqual(names, 45821)


class Pages(unittest.TestCase):
    data = models.read_data()
    sizes = {line["repository"]: f"{line['bytes'] / 1e9:.0f} GB" for line in data}

    def test_the_tables_are_made_from_the_data(self):
        text = models.PAGE.read_text()
        self.assertEqual(models.remake(text, self.data), text)
        wrong = text.replace("| 6 GB |", "| 5 GB |")
        self.assertNotEqual(wrong, text)
        self.assertEqual(models.remake(wrong, self.data), text)

    def test_the_data_has_the_published_checkpoints(self):
        lists = {line["repository"]: (line["tensors"], line["bytes"]) for line in self.data if line["repository"] != models.NANO}
        self.assertEqual(lists, {**lists, **TOTALS})
        self.assertEqual(list(lists), [c.repository for c in published.CHECKPOINTS])

    def test_sizes_on_other_pages_and_in_messages(self):
        flash = "deepseek-ai/DeepSeek-V4-Flash-0731"
        welcome = (ROOT / "cli" / "welcome.cc").read_text()
        self.assertIn("hf download " + flash, welcome)
        self.assertIn(f"a large model of {self.sizes[flash]};", welcome)
        readme = (ROOT / "README.md").read_text()
        rows = dict(re.findall(r"^\| `([\w.-]+/[\w.-]+)` \| (\d+) \|", readme, re.M))
        self.assertGreaterEqual(len(rows), 3)
        self.assertEqual({name: gigabytes + " GB" for name, gigabytes in rows.items()}, {name: self.sizes[name] for name in rows})
        smallest = min(line["bytes"] for line in self.data if line["repository"] != models.NANO)
        self.assertIn(f"The smallest download is {smallest / 1e9:.0f} GB.", (ROOT / "docs" / "quick-start.md").read_text())

    def test_the_table_of_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        columns = re.search(r"^\| \| (.*) \|\n\|[-|]+\|\n\| Flash ", readme, re.M)[1].split(" | ")
        data = {models.short(line["repository"]): line for line in self.data}
        for row, name in {"Flash": "Flash-0731", "Pro": "Pro-0813", models.NANO: models.NANO}.items():
            cells = re.search(rf"^\| {row} \| (.*) \|$", readme, re.M)[1].split(" | ")
            for column, text in zip(columns, cells):
                known = data[name]["gpus"].get(column)
                wanted = models.size_text(data[name]["cpu_bytes"]) if column == "CPU" else models.cell(known)
                self.assertEqual(re.sub("^with | of host memory$", "", text), wanted, (row, column))

    def test_sizes_of_what_is_refused(self):
        total = 0
        for line in gzip.open(read("v41-flash", "tensors.tsv.gz"), "rt"):
            name, dtype, shape = line.rstrip("\n").split("\t")
            total += published.num_bytes((name, dtype, [int(n) for n in shape.split(",") if n]))
        self.assertIn(f"`deepseek-ai/DeepSeek-V4.1-Flash` ({total / 1e9:.0f} GB)", models.PAGE.read_text())


if __name__ == "__main__":
    unittest.main()
