#!/usr/bin/env python3
"""Makes the tables of docs/models.md from tools/docs/models.jsonl, and that file from the program's plans.

    tools/docs/models.py [--write]        compares the tables with models.jsonl; --write makes them
    tools/docs/models.py --plan BINARY    plans every checkpoint with `BINARY inspect --plan` and writes models.jsonl

--plan writes each checkpoint of published.py as files with holes and runs `inspect --plan` on them: this gives the
number of tensors, their bytes, and the memory on a CPU. Whether an MXFP4 expert can be stored in tight tiles on a GPU
depends on its scales, which holes lack. So the program plans GPUs with `--synthetic`, except for a checkpoint with fewer experts. There
the plan of the holes is an upper bound.

Without --write nothing is changed. Prints each table that differs, and exits 1 if there is one.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import published  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("models.jsonl")
PAGE = ROOT / "docs" / "models.md"
NANO = "bundled nano"
GPUS = [(80, 1), (80, 2), (80, 4), (141, 1), (141, 2), (141, 4), (141, 8)]  # GB of a GPU, number of GPUs
END = "<!-- end -->"


def inspect(binary, *args):
    """Returns the plan as JSON. An error of the program ends this script."""
    done = subprocess.run([binary, "inspect", "--plan", "--json", *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def gpus_of(plan):
    """{"1 x 141 GB": bytes of experts in host memory; None: does not fit}"""
    found = {(card["gigabytes"], card["count"]): card["host_bytes"] if card["fits"] else None for card in plan["cards"]}
    return {f"{count} x {size} GB": found.get((size, count)) for size, count in GPUS}


def plan_checkpoint(binary, checkpoint, folder):
    published.write_sparse(checkpoint, folder)
    whole = inspect(binary, "-m", folder, "--speculate", checkpoint.draft.lower())
    trunk = inspect(binary, "-m", folder)
    if whole["unused_tensors"] or whole["skipped_tensors"]:
        sys.exit(f"{checkpoint.repository}: tensors are not used: {(whole['unused_tensors'] + whole['skipped_tensors'])[:3]}")
    on_gpus = trunk
    if not checkpoint.num_experts:
        on_gpus = inspect(binary, "--synthetic", checkpoint.model.lower(), "--fp8-dense", "--synthetic-experts",
                          checkpoint.experts.lower())
    tensors = published.tensors(checkpoint)
    return {"repository": checkpoint.repository, "tensors": len(tensors), "bytes": sum(map(published.num_bytes, tensors)),
            "experts": checkpoint.experts, "draft": checkpoint.draft,
            "draft_bytes": whole["plan"]["weight_bytes"] - trunk["plan"]["weight_bytes"],
            "cpu_bytes": trunk["plan"]["weight_bytes"] + trunk["plan"]["widened_bytes"], "gpus": gpus_of(on_gpus)}


def plan_nano(binary):
    plan = inspect(binary, "-m", ROOT / "models" / "nano")
    size = plan["plan"]["weight_bytes"] + plan["plan"]["widened_bytes"]
    return {"repository": NANO, "bytes": size, "cpu_bytes": size, "gpus": gpus_of(plan)}


def plan_all(binary):
    lines = []
    for checkpoint in published.CHECKPOINTS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(plan_checkpoint(binary, checkpoint, Path(folder)))
    return lines + [plan_nano(binary)]


def size_text(num_bytes):
    """Rounds up: memory that must be there."""
    return f"{math.ceil(num_bytes / 1e9)} GB" if num_bytes >= 1e9 else f"{math.ceil(num_bytes / 1e6)} MB"


def cell(host_bytes):
    if host_bytes is None:
        return "no"
    return size_text(host_bytes) if host_bytes > 0 else "fits"


def short(repository):
    return repository.replace("DeepSeek-V4-", "").split("/")[-1]


def experts_of(line):
    checkpoint = next(c for c in published.CHECKPOINTS if c.repository == line["repository"])
    few = f", {checkpoint.num_experts} of {checkpoint.shape().experts}" if checkpoint.num_experts else ""
    return line["experts"] + few


def repositories(lines):
    rows = ["| repository on Hugging Face | short name | on disk | experts | draft module |", "|---|---|---|---|---|"]
    for line in lines:
        if line["repository"] != NANO:
            rows.append(f"| `{line['repository']}` | {short(line['repository'])} | {line['bytes'] / 1e9:.0f} GB | "
                        f"{experts_of(line)} | {line['draft']}, {line['draft_bytes'] / 1e9:.0f} GB |")
    return rows


def downloads(lines):
    rows = ["```sh"]
    for line in lines:
        if line["repository"] != NANO:
            folder = short(line["repository"]).lower()
            rows.append(f"hf download {line['repository']} --local-dir /models/{folder}   # {line['bytes'] / 1e9:.0f} GB")
    return rows + ["```"]


def hardware(lines):
    """One row for all checkpoints with the same cells."""
    columns, names = list(lines[0]["gpus"]), {}
    for line in lines:
        cells = (*(cell(line["gpus"][column]) for column in columns), size_text(line["cpu_bytes"]))
        names.setdefault(cells, []).append(short(line["repository"]))
    rows = ["| | " + " | ".join(columns) + " | CPU |", "|---|" + "---|" * len(columns) + "---|"]
    return rows + ["| " + " | ".join([", ".join(row), *cells]) + " |" for cells, row in names.items()]


TABLES = {"repositories": repositories, "downloads": downloads, "hardware": hardware}


def remake(text, lines):
    """Returns the page with each block between `<!-- models NAME -->` and the end mark made again."""
    for name, make in TABLES.items():
        begin = f"<!-- models {name} -->\n"
        if begin not in text:
            sys.exit(f"{PAGE.name} has no line '{begin.strip()}': add it, and '{END}' after it")
        head, rest = text.split(begin)
        text = head + begin + "\n".join(make(lines)) + "\n" + rest[rest.index(END):]
    return text


def read_data():
    return [json.loads(line) for line in DATA.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the tables of docs/models.md.")
    parser.add_argument("--write", action="store_true", help="write the tables")
    parser.add_argument("--plan", metavar="BINARY", help="plan every checkpoint and write models.jsonl and the tables")
    args = parser.parse_args()
    if args.plan:
        DATA.write_text("".join(json.dumps(line) + "\n" for line in plan_all(args.plan)))
    text = PAGE.read_text()
    made = remake(text, read_data())
    if args.write or args.plan:
        PAGE.write_text(made)
    elif made != text:
        print("docs/models.md:1: a table differs from tools/docs/models.jsonl: run tools/docs/models.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
