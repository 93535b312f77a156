#!/usr/bin/env python3
"""Compares `dsv4 tokenize` and `dsv4 detokenize` with PyPI's `tokenizers` on seeded random strings.

    pip install tokenizers==0.23.3
    tools/text/compare_tokenizers.py build/dsv4 models/nano [--count 100000] [--seed 1]

Prints the numbers of strings with equal ids and with equal decoded texts. The exit status is 1 if any string differs.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

from tokenizers import Tokenizer

CODE = """for (int i = 0; i < n; ++i) { sum += a[i] * 0x1F; }  // don't
def f(x: str = "~/a_b") -> None:\n\treturn x.split("\\n")[:-1] #!/bin/sh $HOME && ~x || !y\r\n<div class='a'>&nbsp;</div>
"""
WORDS = "the of and to Hello WORLD don't it's naïve Straße ελληνικά русский язык हिन्दी ภาษาไทย 한국어 日本語 中文字符 العربية עברית".split()
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1680, 0x180F), (0x2000, 0x206F),
    (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2E80, 0x2FFF), (0x3000, 0x30FF),
    (0x3130, 0x318F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x9F90, 0x9FAF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF),
    (0xFE00, 0xFE2F), (0xFEFF, 0xFEFF), (0xFF00, 0xFFEF), (0x10000, 0x1FFFF), (0x1D400, 0x1D7FF), (0x1F000, 0x1FAFF),
    (0x20000, 0x2A6DF), (0xE0000, 0xE01EF), (0x0, 0x10FFFF),
]
SPACES = [" ", " ", " ", "\n", "\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u180e", "\x1c", "\x0b"]
EMOJI = ["🙂", "👩‍👩‍👧", "🇩🇪", "❤️", "👍🏽", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
NUMBERS = "0123456789½²①Ⅻ٣४〇"


def random_piece(rng, added):
    kind = rng.randrange(9)
    if kind == 0:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 6)))
    if kind == 1:
        low, high = rng.choice(RANGES)
        codes = (rng.randint(low, high) for _ in range(rng.randint(1, 12)))
        return "".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000)
    if kind == 2:
        return rng.choice(["", " ", "  "]).join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))
    if kind == 3:
        start = rng.randrange(len(CODE))
        return CODE[start : start + rng.randint(1, 30)]
    if kind == 4:
        spelling = rng.choice(added)
        cut = rng.random()
        return spelling if cut < 0.6 else spelling[: rng.randint(1, len(spelling))] if cut < 0.8 else spelling[rng.randrange(len(spelling)) :]
    if kind == 5:
        return "".join(rng.choice(NUMBERS) for _ in range(rng.randint(1, 9)))
    if kind == 6:
        return rng.choice(EMOJI) * rng.randint(1, 3)
    if kind == 7:
        return rng.choice("ab ~.\n\u4e2d<\u30a2!\u0301") * rng.randint(1, 200)
    return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ \n") for _ in range(rng.randint(1, 10)))


def run(binary, command, model_dir, lines):
    done = subprocess.run([binary, command, "-m", model_dir, "--jsonl"], input="\n".join(lines) + "\n",
                          capture_output=True, text=True, encoding="utf-8", check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model_dir")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    path = pathlib.Path(args.model_dir) / "tokenizer.json"
    reference = Tokenizer.from_file(str(path))
    added = [token["content"] for token in json.loads(path.read_text())["added_tokens"]] or ["<think>"]
    rng = random.Random(args.seed)
    texts = ["".join(random_piece(rng, added) for _ in range(rng.randint(1, 8))) for _ in range(args.count)]

    expected_ids = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
    ids = run(args.binary, "tokenize", args.model_dir, [json.dumps(t, ensure_ascii=rng.random() < 0.5) for t in texts])
    # Random ids also split characters.
    sequences = [[rng.randrange(reference.get_vocab_size()) for _ in range(rng.randint(1, 8))] for _ in texts]
    expected_texts = reference.decode_batch(expected_ids + sequences, skip_special_tokens=False)
    decoded = run(args.binary, "detokenize", args.model_dir, [json.dumps(s) for s in expected_ids + sequences])

    failed = 0
    for name, wanted, found, source in (("ids", expected_ids, ids, texts),
                                        ("text", expected_texts, decoded, expected_ids + sequences)):
        agreed = sum(w == f for w, f in zip(wanted, found)) if len(wanted) == len(found) else 0
        print(f"{name}: {agreed} of {len(wanted)} agree")
        failed += len(wanted) - agreed
        differing = [i for i in range(min(len(wanted), len(found))) if wanted[i] != found[i]]
        for i in differing[:3]:
            print(f"  {source[i]!r}\n    reference {wanted[i]!r}\n    dsv4      {found[i]!r}")
    print(f"{sum(map(len, expected_ids))} tokens, seed {args.seed}, {path}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
