"""Scores a model folder with our own engine: the figures of the model card.

    python3 evaluate.py --binary build/cpu/dsv4 --model models/nano --json OUT.json [--count 100] [--parts sums,recall]

Uses only the command line: `perplexity`, `encode`, `generate --temperature 0`, `parse`. Prompts come from probes.py
(fixed seeds, held-out prose). A sum is right if the content of the reply is the expected sentence. A tool call is right
if `parse` finds exactly the expected name and arguments. A key is right if the reply contains its value.
"""

import argparse
import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

import probes
from encoding import EOS

PROSE_PROMPTS = ("And it came to pass", "In the beginning", "It is a truth universally acknowledged")


class Engine:
    def __init__(self, binary, model, options):
        self.binary, self.model, self.options = binary, str(model), options

    def run(self, *arguments, stdin=None):
        command = [self.binary, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def generate(self, prompt, tokens):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(prompt)
            file.flush()
            return self.run(
                "generate", "-m", self.model, "--prompt-file", file.name, "-n", str(tokens),
                "--temperature", "0", "--stop", EOS, *self.options,
            )

    def encode(self, items):
        """Returns the engine's prompts of conversations."""
        lines = [
            json.dumps({k: v for k, v in item.items() if k in ("messages", "tools", "thinking") and v is not None})
            for item in items
        ]
        out = self.run("encode", "-m", self.model, "--jsonl", stdin="\n".join(lines) + "\n")
        return [json.loads(line) for line in out.splitlines()]

    def parse(self, completions, items):
        lines = [
            json.dumps({"completion": text, "thinking": bool(item["thinking"])})
            for text, item in zip(completions, items)
        ]
        out = self.run("parse", "--jsonl", stdin="\n".join(lines) + "\n")
        return [json.loads(line) for line in out.splitlines()]

    def perplexity(self, path):
        return self.run("perplexity", "-m", self.model, "-f", str(path), "--ctx", "1024", "--json", *self.options)


def calls_of(message):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or []
    ]


def is_right(item, message):
    """Returns whether the engine's parsed reply is the expected one."""
    if item["kind"] == "recall":
        return item["value"] in (message.get("content") or "")
    if item["answer"].get("tool_calls"):
        return calls_of(message) == calls_of(item["answer"])
    return (message.get("content") or "").strip() == item["answer"]["content"].strip()


def run_items(engine, items, threads, limit=160):
    """Returns parsed replies and scores. Checks that the engine's prompt is ours, byte for byte."""
    prompts = engine.encode(items)
    for prompt, item in zip(prompts, items):
        if prompt != item["prompt"]:
            raise RuntimeError(f"encoded prompt differs:\n{prompt!r}\n{item['prompt']!r}")
    with ThreadPoolExecutor(threads) as pool:
        completions = list(pool.map(lambda prompt: engine.generate(prompt, limit), prompts))
    messages = engine.parse(completions, items)
    return messages, [is_right(item, message) for item, message in zip(items, messages)]


def share(results):
    results = list(results)
    return round(sum(results) / len(results), 4)


def measure_sums(engine, args, _):
    out = {}
    for name, thinking in (("thinking", True), ("direct", False)):
        items = list(probes.two_digit_sums(args.count, thinking))
        out[name] = share(run_items(engine, items, args.jobs)[1])
    return out


def measure_tools(engine, args, _):
    items = list(probes.tool_calls(args.count))
    messages, right = run_items(engine, items, args.jobs)
    calls = [(m, r) for m, r, item in zip(messages, right, items) if item["answer"].get("tool_calls")]
    answers = [r for r, item in zip(right, items) if not item["answer"].get("tool_calls")]
    return {
        "well_formed": share(bool(calls_of(message)) for message, _ in calls),
        "right": share(r for _, r in calls),
        "answer_after_result": share(answers),
    }


def measure_recall(engine, args, tokenizer):
    text = (Path(args.model) / "heldout.txt").read_text(encoding="utf-8")
    items = list(probes.planted_keys(args.count, text, tokenizer))
    _, right = run_items(engine, items, args.jobs, limit=48)
    return {d: share(r for r, item in zip(right, items) if item["distance"] == d) for d in probes.DISTANCES}


def measure_prose(engine, args, _):
    started = time.time()
    samples = {prompt: engine.generate(prompt, 80) for prompt in PROSE_PROMPTS}
    return {"samples": samples, "seconds": round(time.time() - started, 1)}


def measure_perplexity(engine, args, _):
    out = engine.perplexity(Path(args.model) / "heldout.txt")
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return {"output": out.strip()}


PARTS = {
    "perplexity": measure_perplexity,
    "sums": measure_sums,
    "tools": measure_tools,
    "recall": measure_recall,
    "prose": measure_prose,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=int, default=100, help="items per kind and per distance (default 100)")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--jobs", type=int, default=2, help="engines that run at the same time (default 2)")
    parser.add_argument("--option", action="append", default=[], help="flag for the engine, for example --option=--threads=1")
    parser.add_argument("--json")
    args = parser.parse_args()
    engine = Engine(args.binary, args.model, args.option)
    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    result = {"version": engine.run("--version").strip(), "count": args.count}
    for part in args.parts.split(","):
        result[part] = PARTS[part](engine, args, tokenizer)
        print(part, json.dumps(result[part], ensure_ascii=False), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
