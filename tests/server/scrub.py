"""Removes the texts from bodies of requests: same structure, names, ids and sizes, but every word replaced.

A word is replaced by a word of scrub_words.txt with the same length. The choice depends on all words before it in its text, so
texts with a common beginning keep a common beginning of the same length, and differ after it. Words without spaces that
look like identifiers (types, ids, paths, names of tools and fields) stay. Pictures stay, because they belong to this
project. The billing line of Claude Code stays, because the server knows it.
"""

import base64
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

WORDS = Path(__file__).resolve().parent / "scrub_words.txt"
PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
IDENTIFIER = re.compile(r"[A-Za-z0-9_.,:;=/@*()+-]{1,120}")
BILLING = "x-anthropic-billing-header:"
IMAGE = re.compile(r"data:image/|iVBORw0KGgo")
WORD = re.compile(r"[^\W\d_]+|\d+|[\W_]")


@lru_cache(None)
def words_by_length():
    found = {}
    for word in WORDS.read_text().split():
        found.setdefault(len(word), set()).add(word)
    return {length: sorted(words) for length, words in found.items()}


def word_of(length, number):
    words = words_by_length()
    if length in words:
        return words[length][number % len(words[length])]
    return word_of(length // 2, number) + word_of(length - length // 2, number >> 8)


def scrub_text(text):
    state, out = b"", []
    for word in WORD.findall(text):
        state = hashlib.blake2b(state + word.encode(), digest_size=8).digest()
        number = int.from_bytes(state, "big")
        if word.isdigit():
            out.append("".join(str(number // 10**i % 10) for i in range(len(word))))
        elif word.isalpha():
            new = word_of(len(word), number)
            if new == word.lower():
                new = word_of(len(word), number + 1)
            out.append(new.upper() if word.isupper() and len(word) > 1 else new.capitalize() if word[0].isupper() else new)
        else:
            out.append(word)
    return "".join(out)


def map_texts(value, change):
    """The same JSON with every text changed, including texts inside JSON texts. Identifiers and pictures stay."""
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: map_texts(item, change) for key, item in value.items()}
    if not isinstance(value, str) or IDENTIFIER.fullmatch(value) or value.startswith(BILLING) or IMAGE.match(value):
        return value
    try:
        inner = json.loads(value)
    except ValueError:
        return change(value)
    return json.dumps(map_texts(inner, change), separators=(",", ":")) if isinstance(inner, (dict, list)) else change(value)


def scrub(body):
    return map_texts(body, scrub_text)
