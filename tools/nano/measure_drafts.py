"""Measures tokens per second and per step with every drafter and without, by kind of text, with our own engine.

    python3 measure_drafts.py --binary build/release/dsv4 [--device cuda] [--count 20] [--repeat 3] [--json OUT.json]
        [ENGINE FLAG ...]

Each prompt runs with all drafters in turn, so that they meet the same load of the machine. The tokens must be equal to
the tokens without drafts.

`tokens_per_step` comes from runs that verify every whole draft (`--draft-threshold 0`); it does not depend on times.
`tokens_per_s` comes from runs in which the engine's policy decides by measured times. It leaves out the prompt and the
first token. It is the median over prompts of the fastest of --repeat runs, because other programs may use the machine.

MTP drafts three tokens, as in its training. Sums and tool calls are greedy replies. Prose has temperature 0.7.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import probes
from prose import DOCUMENT_BREAK

DRAFTERS = ("off", "lookup", "mtp", "dspark")
FLAGS = {"mtp": ["--draft-tokens", "3"]}
PROSE_WORDS, PROSE_TOKENS = 48, 128


def items(count, heldout):
    """Yields (kind, prompt, flags): beginnings of held-out prose, sums with reasoning, tool calls and answers."""
    documents = [text.split(" ") for text in heldout.split(DOCUMENT_BREAK)]
    beginnings = [" ".join(words[at : at + PROSE_WORDS]) for words in documents for at in range(0, len(words), 400)]
    drawn = ["-n", str(PROSE_TOKENS), "--temperature", "0.7", "--ignore-eos"]
    for i, text in enumerate(beginnings[:: max(1, len(beginnings) // count)][:count]):
        yield "prose", text, [*drawn, "--seed", str(i + 1)]
    for kind, some in ("sums", probes.two_digit_sums(count, True)), ("tool calls", probes.tool_calls((count + 1) // 2)):
        for item in list(some)[:count]:
            yield kind, item["prompt"], ["-n", "200", "--temperature", "0"]


def generate(args, prompt, flags):
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt)
        file.flush()
        command = [args.binary, "generate", "-m", args.model, "--device", args.device, "--prompt-file", file.name, "--json",
                   *flags, *args.flags]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Total:
    def __init__(self):
        self.tokens, self.steps, self.drafted, self.accepted, self.rates = 0, 0, 0, 0, []

    def add(self, by_policy, all_drafts):
        decoded = by_policy["completion_tokens"] - 1
        drafts = all_drafts.get("drafts", {"steps": decoded, "proposed": 0, "accepted": 0})
        self.tokens += decoded
        self.rates.append(by_policy["timings"]["decode_tokens_per_s"])
        self.steps += drafts["steps"]
        self.drafted += drafts["proposed"]
        self.accepted += drafts["accepted"]

    def result(self):
        return {"tokens": self.tokens, "tokens_per_s": round(statistics.median(self.rates), 1),
                "tokens_per_step": round(self.tokens / self.steps, 3), "drafted": self.drafted, "accepted": self.accepted}


def continue_prompt(args, prompt, flags, first):
    """Returns for every drafter the fastest run with the policy, and a run that verifies every whole draft."""
    fastest, whole, texts = {}, {}, set()
    for turn in range(len(DRAFTERS) * args.repeat):
        drafter = DRAFTERS[(first + turn) % len(DRAFTERS)]
        with_drafter = [*flags, "--speculate", drafter, *FLAGS.get(drafter, [])]
        run = generate(args, prompt, with_drafter)
        fastest[drafter] = max(fastest.get(drafter, run), run, key=lambda run: run["timings"]["decode_tokens_per_s"])
        if drafter not in whole:
            all_drafts = ["--draft-threshold", "0"] if drafter != "off" else []
            whole[drafter] = generate(args, prompt, [*with_drafter, *all_drafts])
        texts |= {tuple(run["ids"]), tuple(whole[drafter]["ids"])}
    if len(texts) != 1:
        raise SystemExit(f"the text depends on the drafter: {prompt!r} with {' '.join(flags)}")
    return fastest, whole


def measure(args):
    heldout = (Path(args.model) / "heldout.txt").read_text(encoding="utf-8")
    totals = {}
    for number, (kind, prompt, flags) in enumerate(items(args.count, heldout)):
        fastest, whole = continue_prompt(args, prompt, flags, number)
        for drafter in DRAFTERS:
            totals.setdefault(kind, {}).setdefault(drafter, Total()).add(fastest[drafter], whole[drafter])
    return {kind: {drafter: by_drafter[drafter].result() for drafter in DRAFTERS} for kind, by_drafter in totals.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=str(Path(__file__).parents[2] / "models" / "nano"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=20, help="prompts per kind (default 20)")
    parser.add_argument("--repeat", type=int, default=1, help="runs per prompt; the fastest counts (default 1)")
    parser.add_argument("--json")
    args, args.flags = parser.parse_known_args()
    result = measure(args)
    print("| | " + " | ".join(DRAFTERS) + " |\n|---|" + "---|" * len(DRAFTERS))
    for kind, found in result.items():
        cells = [f"{found[d]['tokens_per_s']} tok/s, {found[d]['tokens_per_step']:.2f} per step" for d in DRAFTERS]
        print(f"| {kind} | " + " | ".join(cells) + " |")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
