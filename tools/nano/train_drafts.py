"""Trains both draft modules of the nano model on one GPU. The model itself is frozen, with the checkpoint's weights.

    python3 train_drafts.py --prose DIR --model models/nano --out DIR --seconds 150

Drafts learn the model's distribution of every next token: cross-entropy, and total variation, which is the share of
sampled draft tokens that are rejected. In the text some tokens are replaced by draws of the model. MTP learns its first
three steps, each from its own streams of the previous step. DSpark learns its five positions with bigram and confidence
head. Writes mtp.safetensors, dspark.safetensors (weights as in the checkpoint) and drafts.json (their acceptance).
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

import checkpoint
import model as nano
import probes
import train
from corpus import Corpus, Prose
from drafts import Dspark, Mtp, Pieces, later, look
from encoding import EOS
from model import NanoForCausalLM, load_config
from prose import DOCUMENT_BREAK
from sinkhorn import reference as reference_sinkhorn

SHARES = {"prose": 0.45, "sum": 0.14, "tool": 0.2, "chat": 0.06, "recall-prose": 0.05, "recall-chat": 0.07, "recall-words": 0.03}
ROWS, LENGTH, STRIDE = 16, 1024, 4  # DSpark drafts at every STRIDE-th position
MTP_STEPS = 3
MOST_REDRAWN = 0.6  # largest share of a row's tokens
PLACE_WEIGHT = 0.8  # loss weight of a draft position, relative to the previous one
CONFIDENCE_WEIGHT = 0.1


class Rows(torch.utils.data.IterableDataset):
    """(ids, weights) [ROWS, LENGTH], made in worker processes. weights[t]: for the row that predicts ids[t + 1]."""

    def __init__(self, prose_path, tokenizer_path, seed, shape):
        self.prose_path, self.tokenizer_path, self.seed, self.shape = prose_path, tokenizer_path, seed, shape

    def __iter__(self):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenizer = Tokenizer.from_file(self.tokenizer_path)
        prose = Prose(Path(self.prose_path).read_text(encoding="utf-8"), tokenizer)
        worker = torch.utils.data.get_worker_info()
        corpus = Corpus(prose, tokenizer, self.seed * 1000 + (worker.id if worker else 0), SHARES)
        while True:
            ids, _, weights = corpus.batch(*self.shape, 0.5 * self.shape[1])
            yield torch.from_numpy(ids), torch.from_numpy(weights).clamp(max=1)


def match_loss(state, bigram, head, bigram_head, targets, weights):
    """Returns (loss, total variation of every row, whether the arg-max agrees) of drafts against the model's rows."""
    logits = F.linear(state.float(), head)
    if bigram is not None:
        logits = logits + F.linear(bigram.float(), bigram_head)
    p, log_q = targets.softmax(-1), logits.log_softmax(-1)
    variation = 0.5 * (p - log_q.exp()).abs().sum(-1)
    losses = -(p * log_q).sum(-1) + variation
    agrees = logits.argmax(-1) == targets.argmax(-1)
    return (losses * weights).sum() / weights.sum().clamp(min=1), variation.detach(), agrees


@torch.no_grad()
def redraw(trunk, ids, weights, modes):
    """Returns ids. Draws of the model replace a random share of the tokens of weight 1."""
    logits = F.linear(trunk.hidden(ids, modes)[0].float(), trunk.lm_head.weight)
    drawn = (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)
    share = MOST_REDRAWN * torch.rand(len(ids), 1, device=ids.device)
    hit = (torch.rand(ids.shape, device=ids.device) < share) & (weights == 1)
    return torch.where(later(hit, 1), later(drawn, 1), ids)


class Lesson:
    """A drafter with its optimizer."""

    def __init__(self, drafter, rate):
        self.drafter = drafter.float().to(device())
        self.optimizer = train.optimizer_of(self.drafter, rate)
        self.loss_of = match_loss

    def learn(self, loss, rate):
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


class MtpLesson(Lesson):
    def measure(self, trunk, seen, weights, modes):
        """Returns (loss, variations, agreements, weights: one [B, drafts] per draft position, loads)."""
        states, loads = self.drafter(trunk, seen, modes, MTP_STEPS)
        targets, after = seen.logits[:, 1:], weights[:, 1:]
        total, found = 0.0, []
        for step, state in enumerate(states):
            after = F.pad(after[:, step:], (step, 0))
            loss, *rows = self.loss_of(state[:, :-1], None, trunk.lm_head.weight, None, targets, after)
            total = total + PLACE_WEIGHT**step * loss
            # Row i belongs to the draft made after i - step.
            found.append([row[:, step:] for row in (*rows, after)])
        count = found[-1][0].shape[1]
        return total, *([part[:, :count] for part in parts] for parts in zip(*found)), loads


class DsparkLesson(Lesson):
    def measure(self, trunk, seen, weights, modes, offset=0, stride=STRIDE):
        length, block = seen.ids.shape[1], self.drafter.block
        anchors = torch.arange(offset, length, stride, device=seen.ids.device)
        states, bigrams, confidences, loads = self.drafter(trunk, seen, modes, anchors)
        total, found = 0.0, []
        for place in range(block):
            at = anchors + 1 + place
            inside = at.clamp(max=length - 1)
            after = torch.where(at < length, weights[:, inside], 0.0)
            heads = trunk.lm_head.weight, self.drafter.mtp[-1].markov_head.markov_w2.weight
            part = (states[:, :, place], bigrams[:, :, place], *heads, seen.logits[:, inside], after)
            loss, variation, agrees = self.loss_of(*part)
            rated = F.binary_cross_entropy_with_logits(confidences[:, :, place], 1 - variation, reduction="none")
            rated = (rated * after).sum() / after.sum().clamp(min=1)
            total = total + PLACE_WEIGHT**place * (loss + CONFIDENCE_WEIGHT * rated)
            found.append((variation, agrees, after))
        return total, *(list(parts) for parts in zip(*found)), loads


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def probe_rows(tokenizer, heldout_text, length):
    """Returns {kind: (ids, weights)} of held-out prose and expected replies; weight 1 if drafts count there."""
    ids = tokenizer.encode(heldout_text.replace(DOCUMENT_BREAK, "\n\n"), add_special_tokens=False).ids
    rows = {"prose": [(ids[i : i + length], 0) for i in range(0, min(len(ids), 40 * length) - length, length)]}
    conversations = {"sums": list(probes.two_digit_sums(40, True)), "tools": list(probes.tool_calls(40))}
    for kind, items in conversations.items():
        texts = [(item["prompt"], item["expected"] + EOS) for item in items]
        encoded = [[tokenizer.encode(text, add_special_tokens=False).ids for text in pair] for pair in texts]
        rows[kind] = [((prompt + reply)[:length], len(prompt)) for prompt, reply in encoded]
    out = {}
    for kind, items in rows.items():
        tokens, weights = torch.zeros(len(items), length, dtype=torch.long), torch.zeros(len(items), length)
        for row, (text, start) in enumerate(items):
            tokens[row, : len(text)] = torch.tensor(text)
            weights[row, max(start - 1, 0) : len(text) - 1] = 1
        out[kind] = tokens, weights
    return out


class Run:
    def __init__(self, args):
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        folder = Path(args.model)
        torch.manual_seed(args.seed)
        fields = json.loads((folder / "config.json").read_text())
        activation = torch.bfloat16 if device() == "cuda" else torch.float32
        self.trunk = NanoForCausalLM(load_config(folder / "config.json"), activation).eval()
        checkpoint.load_quantised(self.trunk, folder / "model.safetensors")
        self.trunk.requires_grad_(False).to(device())
        self.targets = fields["dspark_target_layer_ids"]
        dspark = Dspark(self.trunk, fields["dspark_block_size"], fields["dspark_noise_token_id"],
                        fields["dspark_markov_rank"], self.targets)
        self.lessons = {"mtp": MtpLesson(Mtp(self.trunk), args.rate), "dspark": DsparkLesson(dspark, args.rate)}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.frozen = self.trunk.modes(1, 1, weights=0)  # its weights are rounded already

    def log(self, **values):
        line = json.dumps(values)
        print(line, flush=True)
        with open(self.out / "log.jsonl", "a") as file:
            file.write(line + "\n")

    def compile(self):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.suppress_errors = True  # a part that cannot be compiled runs uncompiled
        if self.args.plain_sinkhorn:
            nano.sinkhorn = reference_sinkhorn
        self.trunk.pieces = nano.Pieces.compiled()
        pieces, loss = Pieces.compiled(), torch.compile(match_loss, dynamic=False)
        for lesson in self.lessons.values():
            lesson.drafter.pieces, lesson.loss_of = pieces, loss

    def batches(self):
        shape = (self.args.rows, self.args.length)
        paths = str(Path(self.args.prose) / "train.txt"), str(Path(self.args.model) / "tokenizer.json")
        prefetch = 4 if self.args.workers else None
        return iter(torch.utils.data.DataLoader(
            Rows(*paths, self.args.seed, shape), batch_size=None, num_workers=self.args.workers,
            prefetch_factor=prefetch, pin_memory=device() == "cuda",
        ))

    def step(self, ids, weights, p, number):
        """Trains both drafters one step; returns {name: (loss, norm, agreement per draft position)}."""
        ids = redraw(self.trunk, ids, weights, self.frozen)
        seen = look(self.trunk, ids, self.frozen, self.targets)
        modes = self.trunk.modes(1, 1, weights=p >= self.args.quantise_from)
        rate = self.args.rate * min(1.0, (number + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(p, 1.0))))
        report = {}
        for name, lesson in self.lessons.items():
            extra = {"offset": number % STRIDE} if name == "dspark" else {}
            loss, _, agreements, places, loads = lesson.measure(self.trunk, seen, weights, modes, **extra)
            norm = lesson.learn(loss, rate)
            train.balance(lesson.drafter.mtp, loads, 1e-3 if p < 0.9 else 0.0)
            report[name] = loss.detach(), norm, [(a * w).sum() / w.sum() for a, w in zip(agreements, places)]
        return report

    def train(self):
        batches = self.batches()
        if self.args.compile:
            self.compile()
        started, number, limit, warm = time.time(), 0, self.args.seconds, None
        while True:
            # The schedule starts after compilation and ends after --seconds in total.
            now = time.time() - started
            if number == 4:
                warm = now
            p = 0.0 if warm is None else (now - warm) / max(limit - warm, 1e-9)
            if p >= 1 or now >= limit or number == self.args.steps:
                break
            ids, weights = (part.to(device(), non_blocking=True) for part in next(batches))
            report = self.step(ids, weights, p, number)
            number += 1
            if number % 50 == 0 or number <= 4:
                values = {
                    name: [round(loss.item(), 3), round(norm.item(), 2), *(round(a.item(), 3) for a in agreement)]
                    for name, (loss, norm, agreement) in report.items()
                }
                self.log(t=round(time.time() - started, 1), step=number, p=round(p, 3), **values)
        self.log(steps=number, tokens=number * self.args.rows * self.args.length, seconds=round(time.time() - started, 1))

    def finish(self):
        """Writes the modules, reads them again and writes their acceptance."""
        result = {}
        heldout = (Path(self.args.prose) / "heldout.txt").read_text(encoding="utf-8")
        rows = probe_rows(self.tokenizer, heldout, self.args.length)
        paths = {name: self.out / f"{name}.safetensors" for name in self.lessons}
        for name, lesson in self.lessons.items():
            checkpoint.save(checkpoint.pack(lesson.drafter.state_dict()), paths[name])
        for name, lesson in self.lessons.items():
            path = paths[name]
            state = checkpoint.unpack(load_file(path), lesson.drafter.state_dict())
            lesson.drafter.load_state_dict(state)
            lesson.drafter.eval()
            lesson.drafter.pieces, lesson.loss_of = Pieces(), match_loss
            result[name] = {kind: self.acceptance(lesson, name, *part) for kind, part in rows.items()}
            result[name]["bytes"] = path.stat().st_size
        self.log(**result)
        (self.out / "drafts.json").write_text(json.dumps(result, indent=2) + "\n")

    @torch.no_grad()
    def acceptance(self, lesson, name, ids, weights):
        """Returns the share of drafts whose first N tokens are the model's arg-max, and the mean of 1 - variation."""
        self.trunk.pieces = nano.Pieces()
        leading, close, total = 0.0, 0.0, 0.0
        for start in range(0, len(ids), 8):
            part, counts = ids[start : start + 8].to(device()), weights[start : start + 8].to(device())
            seen = look(self.trunk, part, self.frozen, self.targets)
            extra = {"stride": 1} if name == "dspark" else {}
            _, variations, agreements, places, _ = lesson.measure(self.trunk, seen, counts, self.frozen, **extra)
            whole = torch.stack(places).amin(0)  # 1 if all positions of the draft count
            leading = leading + (torch.stack(agreements).float().cumprod(0) * whole).sum((1, 2))
            close = close + ((1 - torch.stack(variations)) * whole).sum((1, 2))
            total = total + whole.sum()
        lengths = (leading / total).tolist()
        return {
            "accepted_up_to": [round(x, 4) for x in lengths],
            "tokens_per_step": round(1 + sum(lengths), 3),
            "closeness": [round(x, 4) for x in (close / total).tolist()],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prose", required=True, help="folder with train.txt and heldout.txt")
    parser.add_argument("--model", required=True, help="the model's folder")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=150, help="time of training with compilation (default 150)")
    parser.add_argument("--steps", type=int, default=-1, help="at most this number of steps (default -1: no limit)")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--quantise-from", type=float, default=0.6)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--plain-sinkhorn", action="store_true", help="use the plain Sinkhorn, if check_gpu.py finds an error in the fused one")
    run = Run(parser.parse_args())
    run.train()
    run.finish()


if __name__ == "__main__":
    main()
