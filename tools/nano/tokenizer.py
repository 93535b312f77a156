"""Trains the nano tokenizer: V4's tokenizer.json structure with a small vocabulary.

    python3 tokenizer.py --v4 DIR_WITH_V4_TOKENIZER --prose TRAIN_TXT --out models/nano

Ids: 0, 1, 2 = BOS, EOS, pad; 3..258 the bytes in V4's order; 259 + k = merge k; then placeholders and V4's functional
tokens. The training text has no digits, so that every digit is one token.
"""

import argparse
import json
import random
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import recall
import tasks
from corpus import Prose

VOCAB_SIZE = 4096
FIRST_MERGE = 259
PLACEHOLDERS = 6
FUNCTIONAL = range(128800, 128847)  # V4 ids of tokens that text and chat encoding use


def byte_symbols(v4_vocab):
    """Returns the 256 single-byte symbols in V4's id order."""
    by_id = {i: token for token, i in v4_vocab.items()}
    return [by_id[i] for i in range(3, FIRST_MERGE)]


def training_text(prose_path):
    """Yields prose and generated conversations without digits and without added tokens."""
    text = Path(prose_path).read_text(encoding="utf-8")
    rng, prose = random.Random(7), Prose(text)
    pieces = [text]
    for _ in range(600):
        for sample in (tasks.sums(rng), tasks.tool_use(rng), tasks.chatter(rng, prose)):
            pieces.append(sample.text())
    for _ in range(300):
        pieces.append(recall.planted_in_chat(rng, prose, 60).text())
    marks = re.compile(r"<｜[^｜]*｜>|</?think>|｜DSML｜|\d+")
    for piece in pieces:
        for line in piece.splitlines(keepends=True):
            yield from (part for part in marks.split(line) if part)


def train_merges(pre_tokenizer, symbols, text, count):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=len(symbols) + count + 200, initial_alphabet=symbols, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(text, trainer)
    merges, seen = [], set(symbols)
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        if left + right not in seen and left in seen and right in seen:  # one merge per token, as in V4
            seen.add(left + right)
            merges.append((left, right))
    return merges[:count]


def build(v4, prose_path):
    splits = [
        pre_tokenizers.Split(Regex(split["pattern"]["Regex"]), "isolated")
        for split in v4["pre_tokenizer"]["pretokenizers"][:3]
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    functional = [token for token in v4["added_tokens"] if token["id"] in FUNCTIONAL]
    placeholders = [token for token in v4["added_tokens"] if "place▁holder▁no▁" in token["content"]][:PLACEHOLDERS]
    leading = [token for token in v4["added_tokens"] if token["id"] < 3]
    count = VOCAB_SIZE - FIRST_MERGE - PLACEHOLDERS - len(functional)
    symbols = byte_symbols(v4["model"]["vocab"])
    merges = train_merges(
        pre_tokenizers.Sequence(splits + [byte_level]), symbols, training_text(prose_path), count
    )
    assert len(merges) == count, len(merges)

    vocab = {token["content"]: token["id"] for token in leading}
    vocab |= {symbol: 3 + i for i, symbol in enumerate(symbols)}
    vocab |= {left + right: FIRST_MERGE + k for k, (left, right) in enumerate(merges)}
    assert len(vocab) == FIRST_MERGE + count
    added = leading + [
        token | {"id": FIRST_MERGE + count + i} for i, token in enumerate(placeholders + functional)
    ]
    model = v4["model"] | {"vocab": vocab, "merges": [f"{left} {right}" for left, right in merges]}
    return v4 | {"added_tokens": added, "model": model}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--v4", required=True)
    parser.add_argument("--prose", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    v4 = json.loads((Path(args.v4) / "tokenizer.json").read_text(encoding="utf-8"))
    result = build(v4, args.prose)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    config = json.loads((Path(args.v4) / "tokenizer_config.json").read_text(encoding="utf-8"))
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    sample = "And it came to pass, that 27 + 48 = 75.\n\n<think>x</think><｜User｜>"
    print(tokenizer.get_vocab_size(), tokenizer.encode(sample, add_special_tokens=False).tokens)


if __name__ == "__main__":
    main()
