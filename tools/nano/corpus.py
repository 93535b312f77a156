"""The training stream: documents of every kind, tokenized, weighted and packed into rows.

    python3 corpus.py --prose train.txt --tokenizer models/nano/tokenizer.json     prints samples and counts

A document is (ids, weights): weights[i] is the loss weight of predicting ids[i]. Prompts have a small weight, answers
have 1, recalled keys have more. Rows hold whole documents; prose fills the rest of a row.
"""

import argparse
import random
import re
import time
from collections import Counter

import numpy as np
from tokenizers import Tokenizer

import recall
import tasks
from encoding import ASSISTANT, BOS, EOS
from prose import DOCUMENT_BREAK

PROMPT_WEIGHT, FILLER_WEIGHT, ANSWER_WEIGHT, RECALL_WEIGHT = 0.1, 0.02, 1.0, 3.0
SHARES = {  # of the tokens
    "prose": 0.17,
    "sum": 0.13,
    "tool": 0.18,
    "chat": 0.06,
    "recall-prose": 0.24,
    "recall-chat": 0.08,
    "recall-plain": 0.09,
    "recall-words": 0.05,
}


class Prose:
    """Sentences, words and names of the training prose. With a tokenizer also its documents as ids."""

    def __init__(self, text, tokenizer=None):
        documents = text.split(DOCUMENT_BREAK)
        self.all_sentences = [
            sentence for document in documents for sentence in re.split(r"(?<=[.!?;])\s+", document) if sentence
        ]
        counts = Counter(re.findall(r"(?<=[a-z,] )[A-Za-z]+\b", text))
        self.words = sorted(w for w, n in counts.items() if w.islower() and 3 <= len(w) <= 9 and n >= 40)
        self.names = sorted(w for w, n in counts.items() if w[0].isupper() and w[1:].islower() and len(w) > 2 and n >= 6)
        self.lengths = [len(sentence) / 4.3 + 1 for sentence in self.all_sentences]
        if tokenizer:
            self.ids = [np.array(e.ids, dtype=np.int32) for e in tokenizer.encode_batch(documents)]
            self.total = sum(map(len, self.ids))
            self.document_shares = np.cumsum([len(ids) / self.total for ids in self.ids])

    def sentences(self, rng, tokens):
        """Returns successive sentences with about `tokens` tokens in total."""
        at, total, out = rng.randrange(len(self.all_sentences) - 400), 0.0, []
        while total < tokens and at < len(self.all_sentences):
            out.append(self.all_sentences[at])
            total += self.lengths[at]
            at += 1
        return out

    def passage(self, rng, characters):
        return " ".join(self.sentences(rng, characters / 4.3))[:characters].rsplit(" ", 1)[0]

    def slice(self, rng, length):
        """Returns up to `length` ids of one document, and whether they reach its end."""
        ids = self.ids[min(int(np.searchsorted(self.document_shares, rng.random())), len(self.ids) - 1)]
        start = 0 if rng.random() < 0.2 else rng.randrange(len(ids))
        return ids[start : start + length], start + length >= len(ids)


class Corpus:
    """Documents and rows. `limit` is the current longest recall distance in tokens."""

    def __init__(self, prose, tokenizer, seed, shares=SHARES):
        self.prose, self.tokenizer, self.shares = prose, tokenizer, shares
        self.rng = random.Random(seed)
        self.bos, self.eos, self.turn = (tokenizer.token_to_id(t) for t in (BOS, EOS, ASSISTANT))
        self.vocab_size = tokenizer.get_vocab_size()
        self.used = dict.fromkeys(shares, 1.0)
        self.pending = None

    def chat(self, sample):
        """Returns (ids, loss weights). Answers follow `<｜Assistant｜>` and its think mark, up to EOS."""
        ids = self.tokenizer.encode(sample.text(), add_special_tokens=False).ids
        strong = RECALL_WEIGHT if sample.kind == "recall" else ANSWER_WEIGHT
        weak = FILLER_WEIGHT if sample.kind == "recall" else PROMPT_WEIGHT
        weights, answer_from = [], None
        for i, token in enumerate(ids):
            if token == self.turn:
                answer_from = i + 2
            weights.append(strong if answer_from is not None and i >= answer_from else weak)
            if token == self.eos:
                answer_from = None
        return ids, weights

    def plain(self, pieces):
        """Returns (ids, loss weights) of plain text from (text, weighted) pieces."""
        text = "".join(piece for piece, _ in pieces)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        spans, at = [], 0
        for piece, weighted in pieces:
            if weighted:
                spans.append((at, at + len(piece)))
            at += len(piece)
        weights, k = [], 0
        for start, end in encoded.offsets:
            while k < len(spans) and spans[k][1] <= start:
                k += 1
            inside = k < len(spans) and end > spans[k][0]
            weights.append(RECALL_WEIGHT if inside else FILLER_WEIGHT)
        return [self.bos] + encoded.ids + [self.eos], [FILLER_WEIGHT] + weights + [FILLER_WEIGHT]

    def prose_document(self, length, at_row_start):
        ids, ended = self.prose.slice(self.rng, length)
        lead = [] if at_row_start and self.rng.random() < 0.7 else [self.bos]
        ids = lead + list(ids) + ([self.eos] if ended else [])
        return ids, [1.0] * len(ids)

    def document(self, kind, limit, length, at_row_start):
        rng, prose = self.rng, self.prose
        if kind == "prose":
            return self.prose_document(rng.randrange(min(200, length - 1), length), at_row_start)
        if kind == "sum":
            return self.chat(tasks.sums(rng))
        if kind == "tool":
            return self.chat(tasks.tool_use(rng))
        if kind == "chat":
            return self.chat(tasks.chatter(rng, prose))
        if kind == "recall-prose":
            return self.chat(recall.planted_in_prose(rng, prose, limit))
        if kind == "recall-chat":
            return self.chat(recall.planted_in_chat(rng, prose, limit))
        if kind == "recall-plain":
            return self.plain(recall.plain_text(rng, prose, limit))
        return self.plain(recall.repeated_words(rng, prose, limit))

    def next_kind(self):
        """Returns the kind that needs the most tokens to reach its share."""
        return min(self.shares, key=lambda kind: self.used[kind] / self.shares[kind])

    def row(self, length, limit):
        """Returns (ids, weights) of exactly `length` entries."""
        ids, weights = [], []
        while len(ids) < length:
            room = length - len(ids)
            if self.pending and len(self.pending[0]) <= room:
                document, self.pending = self.pending, None
            elif room < 160 or self.pending:
                document = self.document("sum", limit, room, not ids) if room > 200 else ([], [])
                if not document[0] or len(document[0]) > room:
                    document = self.prose_document(room, not ids)
                    self.used["prose"] += room
            else:
                kind = self.next_kind()
                document = self.document(kind, limit, room, not ids)
                if len(document[0]) > length:  # longer than a row
                    continue
                self.used[kind] += len(document[0])
                if len(document[0]) > room:
                    self.pending = document
                    continue
            ids.extend(document[0][:room])
            weights.extend(document[1][:room])
        return ids, weights

    def batch(self, rows, length, limit, noise=0.0):
        """Returns int64 inputs, targets [rows, length] and float32 weights. `noise`: share of random prose inputs."""
        if self.pending and len(self.pending[0]) > length:
            self.pending = None
        packed = [self.row(length + 1, limit) for _ in range(rows)]
        ids = np.array([row[0] for row in packed], dtype=np.int64)
        weights = np.array([row[1] for row in packed], dtype=np.float32)
        inputs, targets = ids[:, :-1].copy(), ids[:, 1:]
        if noise:
            draw = np.random.default_rng(self.rng.getrandbits(32))
            hit = (draw.random(inputs.shape) < noise) & (weights[:, :-1] == 1.0) & (weights[:, 1:] == 1.0)
            hit &= (inputs > 258) & (inputs < self.vocab_size - 60)  # whole-word merges only: keep digits and marks
            inputs[hit] = draw.integers(259, self.vocab_size - 60, int(hit.sum()))
        return inputs, targets, weights[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=500)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    prose = Prose(open(args.prose, encoding="utf-8").read(), tokenizer)
    print(prose.total, "prose tokens;", len(prose.words), "words;", len(prose.names), "names")
    corpus = Corpus(prose, tokenizer, seed=1)
    for kind in SHARES:
        ids, weights = corpus.document(kind, args.limit, 1024, False)
        print(f"--- {kind}: {len(ids)} tokens, weight {sum(weights):.0f}")
        print(tokenizer.decode(ids, skip_special_tokens=False)[-700:])
    start = time.time()
    inputs, _, weights = corpus.batch(64, 1024, args.limit)
    print(f"{inputs.size / (time.time() - start):.0f} tokens/s, mean weight {weights.mean():.3f}", corpus.used)


if __name__ == "__main__":
    main()
