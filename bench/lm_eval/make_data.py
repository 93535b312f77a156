#!/usr/bin/env python3
"""Writes cloze.jsonl and sums.jsonl next to this file: small data for lm-evaluation-harness, from
models/nano/heldout.txt and from arithmetic. Every run writes the same bytes."""

import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
COUNT, CONTEXT, ENDING = 40, 60, 8  # documents; words before and of each ending


def cloze(rng):
    words = (HERE.parents[1] / "models" / "nano" / "heldout.txt").read_text().split()
    starts = rng.sample(range(0, len(words) - CONTEXT - ENDING), COUNT * 4)

    def piece(start):
        return " ".join(words[start:start + CONTEXT]), " " + " ".join(words[start + CONTEXT:start + CONTEXT + ENDING])
    for i in range(COUNT):
        context, right = piece(starts[4 * i])
        choices = [right] + [piece(start)[1] for start in starts[4 * i + 1:4 * i + 4]]
        order = rng.sample(range(4), 4)
        yield {"context": context, "choices": [choices[k] for k in order], "answer": order.index(0)}


def sums(rng):
    for _ in range(COUNT):
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
        yield {"question": "What is %d + %d?" % (a, b), "answer": "%d + %d = %d." % (a, b, a + b)}


def main():
    rng = random.Random(4)
    for name, documents in [("cloze", cloze(rng)), ("sums", sums(rng))]:
        (HERE / (name + ".jsonl")).write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents))


if __name__ == "__main__":
    main()
