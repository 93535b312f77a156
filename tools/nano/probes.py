"""Evaluation prompts with their expected completions, the same for PyTorch and for the engine.

Facts are planted in held-out prose. Training uses other random seeds.
"""

import random

import recall
import tasks
from corpus import Prose
from encoding import EOS, encode

DISTANCES = (50, 100, 250, 500, 1000, 1500, 2000, 2500, 3000)


def turn_items(sample, kind):
    """Yields one item per assistant turn: the conversation before it, and the expected completion."""
    for i, message in enumerate(sample.messages):
        if message["role"] != "assistant":
            continue
        before = sample.messages[:i]
        prompt = encode(before, sample.tools, sample.thinking)
        full = encode(before + [message], sample.tools, sample.thinking)
        assert full.startswith(prompt) and full.endswith(EOS)
        yield {
            "kind": kind,
            "prompt": prompt,
            "expected": full[len(prompt) : -len(EOS)],
            "messages": before,
            "tools": sample.tools,
            "thinking": sample.thinking,
            "answer": message,
        }


def two_digit_sums(count, thinking, seed=101):
    rng = random.Random(seed)
    for _ in range(count):
        sample = tasks.Sample(list(tasks.sum_turn(rng, thinking, (2, 2))), thinking=thinking)
        yield from turn_items(sample, "sum")


def tool_calls(count, seed=102):
    """Yields calls and the answers after their results. Weather and calculator alternate, and thinking on and off."""
    rng = random.Random(seed)
    for i in range(count):
        kind = ("weather", "calculator")[i % 2]
        sample = tasks.tool_use(rng, thinking=i // 2 % 2 == 1, kind=kind, turns=1)
        yield from turn_items(sample, "tool")


def planted_key(rng, prose, tokenizer, distance):
    """Returns an item with one fact and one question. `distance` tokens separate the fact and the end of the prompt."""
    ((subject, value),) = recall.random_facts(rng, prose, 1)
    asked = recall.question(rng, subject)
    length = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: E731
    room = max(distance - length(asked) - 4, 4)
    words = " ".join(prose.sentences(rng, 1.4 * room + 20)).split(" ")
    low, high = 1, len(words)
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        if length(" ".join(words[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    before = " ".join(prose.sentences(rng, rng.randrange(5, 60)))
    text = f"{before} {recall.statement(rng, subject, value)} {' '.join(words[:low])}\n\n{asked}"
    messages = [tasks.user(text), tasks.assistant(recall.answer(subject, value))]
    (item,) = turn_items(tasks.Sample(messages), "recall")
    item["value"], item["distance"] = value, distance
    return item


def planted_keys(count, prose_text, tokenizer, distances=DISTANCES, seed=103):
    prose = Prose(prose_text)
    pieces = sorted(token[1:] for token in tokenizer.get_vocab() if token.startswith("Ġ"))
    prose.words = [w for w in pieces if w.isascii() and w.isalpha() and w.islower() and 3 <= len(w) <= 9]
    prose.names = [w for w in pieces if w.isascii() and w.isalpha() and w.istitle() and len(w) > 2]
    rng = random.Random(seed)
    for distance in distances:
        for _ in range(count):
            yield planted_key(rng, prose, tokenizer, distance)
