"""Scores a model in PyTorch: held-out prose, sums, tool calls, planted keys.

    python3 evaluate_torch.py --model models/nano --heldout heldout.txt [--json OUT]     scores the exported checkpoint

An answer is right if every token of it is the arg-max after the tokens before it: greedy decoding would write it. The
engine's own figures come from evaluate.py.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import checkpoint
import probes
from encoding import EOS
from model import NanoForCausalLM, linear, load_config
from prose import DOCUMENT_BREAK


def device_of(model):
    return model.hadamard.device


@torch.no_grad()
def prose_loss(model, tokenizer, text, modes, context=1024):
    """Returns the mean negative log-likelihood per token, in chunks of `context`. Blank lines join the documents."""
    ids = tokenizer.encode(text.replace(DOCUMENT_BREAK, "\n\n"), add_special_tokens=False).ids
    count = (len(ids) - 1) // context
    rows = torch.tensor(ids[: count * context + 1], device=device_of(model))
    total = 0.0
    for start in range(0, count, 16):
        part = rows[start * context : min(start + 16, count) * context + 1]
        inputs, targets = part[:-1].view(-1, context), part[1:]
        y, _, _ = model.hidden(inputs, modes)
        logits = linear(y, model.lm_head.weight).float().flatten(0, 1)
        total += F.cross_entropy(logits, targets, reduction="sum").item()
    return total / (count * context)


@torch.no_grad()
def correct(model, tokenizer, items, modes, tokens_per_batch=65536):
    """Returns for every item whether greedy decoding writes the expected completion (for a planted key: its value)."""
    encoded = []
    for item in items:
        prompt = tokenizer.encode(item["prompt"], add_special_tokens=False).ids
        full = tokenizer.encode(item["prompt"] + item["expected"] + EOS, add_special_tokens=False).ids
        encoded.append((len(prompt), full))
    order = sorted(range(len(items)), key=lambda i: len(encoded[i][1]))
    results = [False] * len(items)
    while order:
        longest, batch = 0, []
        while order and max(longest, len(encoded[order[0]][1])) * (len(batch) + 1) <= tokens_per_batch:
            longest = max(longest, len(encoded[order[0]][1]))
            batch.append(order.pop(0))
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(encoded[i][1])] = torch.tensor(encoded[i][1])
        ids = ids.to(device_of(model))
        y, _, _ = model.hidden(ids, modes)
        best = linear(y, model.lm_head.weight).argmax(-1)
        for row, i in enumerate(batch):
            start, full = encoded[i]
            if "value" in items[i]:  # the sentence around the value may differ
                head = items[i]["expected"].rindex(items[i]["value"])
                start += len(tokenizer.encode(items[i]["expected"][:head].rstrip(), add_special_tokens=False).ids)
                full = full[:-1]
            results[i] = torch.equal(best[row, start - 1 : len(full) - 1], ids[row, start : len(full)])
    return results


def share(results):
    return round(sum(results) / len(results), 4)


def score(model, tokenizer, heldout_text, modes, count=100, distances=probes.DISTANCES):
    out = {"heldout_loss": round(prose_loss(model, tokenizer, heldout_text, modes), 4)}
    for name, thinking in (("sums_thinking", True), ("sums_direct", False)):
        items = list(probes.two_digit_sums(count * 2, thinking))
        out[name] = share(correct(model, tokenizer, items, modes))
    items = list(probes.tool_calls(count))
    results = correct(model, tokenizer, items, modes)
    calls = [r for item, r in zip(items, results) if item["answer"].get("tool_calls")]
    answers = [r for item, r in zip(items, results) if not item["answer"].get("tool_calls")]
    out["tool_calls"], out["tool_answers"] = share(calls), share(answers)
    items = list(probes.planted_keys(count, heldout_text, tokenizer, distances))
    results = correct(model, tokenizer, items, modes)
    out["recall"] = {
        d: share([r for item, r in zip(items, results) if item["distance"] == d]) for d in distances
    }
    return out


@torch.no_grad()
def generate(model, tokenizer, prompt, count, modes):
    """Returns a greedy continuation. Computes the whole sequence again for every token."""
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    start = len(ids)
    for _ in range(count):
        y, _, _ = model.hidden(torch.tensor([ids], device=device_of(model)), modes)
        ids.append(linear(y[:, -1], model.lm_head.weight).argmax().item())
        if ids[-1] == tokenizer.token_to_id(EOS):
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    folder = Path(args.model)
    model = NanoForCausalLM(load_config(folder / "config.json"), dtype).eval()
    checkpoint.load_quantised(model, folder / "model.safetensors")
    model.to(device)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = Path(args.heldout).read_text(encoding="utf-8")
    modes = model.modes(1, 1)
    result = score(model, tokenizer, text, modes, args.count)
    print(json.dumps(result))
    for prompt in ("And it came to pass", "It is a truth universally acknowledged"):
        print(prompt + generate(model, tokenizer, prompt, 80, modes))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
