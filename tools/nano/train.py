"""Trains the nano model on one GPU: bf16 activations, float32 parameters, AdamW, cosine, a curriculum by wall clock.

    python3 train.py --prose DIR --model models/nano --out DIR --minutes 10 [--resume] [--init CHECKPOINT]

Progress p goes from 0 to 1 over --minutes; with --resume the time of earlier runs counts. At first rows have 1,024
tokens and recall distances grow from 60 to 900. At p = 0.45 rows of 3,072 with distances up to 2,800 join. CSA sees
every row until --sparse-from, then only the indexer's picks. From --quantise-from weights and KV are rounded as in the
checkpoint.
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
from tokenizers import Tokenizer

import evaluate_torch
import probes
from checkpoint import load_quantised
from corpus import Corpus, Prose
from model import NanoForCausalLM, Pieces, linear, load_config

RECIPE = "mixer-rate-1"  # --resume refuses the state of another recipe
SHORT, LONG = (64, 1024), (21, 3072)  # (rows, tokens)
LONG_FROM = 0.45
QUICK_DISTANCES = (50, 250, 500, 1000, 2000)


def recall_limit(p):
    """Returns the longest recall distance in tokens at progress p."""
    if p < LONG_FROM:
        return 60 * (900 / 60) ** min(max((p - 0.04) / 0.31, 0), 1)
    return 2800


class Batches(torch.utils.data.IterableDataset):
    """Batches, made in worker processes. The shared value holds the progress of training."""

    def __init__(self, prose_path, tokenizer_path, progress, seed, noise):
        self.prose_path, self.tokenizer_path = prose_path, tokenizer_path
        self.progress, self.seed, self.noise = progress, seed, noise

    def __iter__(self):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        worker = torch.utils.data.get_worker_info().id
        tokenizer = Tokenizer.from_file(self.tokenizer_path)
        prose = Prose(Path(self.prose_path).read_text(encoding="utf-8"), tokenizer)
        corpus = Corpus(prose, tokenizer, self.seed * 1000 + worker)
        while True:
            p = self.progress.value
            rows, length = LONG if p >= LONG_FROM and corpus.rng.random() < 0.4 else SHORT
            limit = min(recall_limit(p), length * 0.93)
            noise = self.noise if p < 0.9 else 0.0
            yield tuple(torch.from_numpy(a) for a in corpus.batch(rows, length, limit, noise))


def initialise(model, seed):
    """Sets balanced random hash tables, and stream mixers near the identity."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    for layer in model.model.layers:
        if layer.mlp.is_hash:
            order = torch.rand(config.vocab_size, config.n_routed_experts, generator=generator)
            layer.mlp.gate.tid2eid.copy_(order.argsort(-1)[:, : config.num_experts_per_tok])
        for hc in (layer.attn_hc, layer.ffn_hc):
            n = hc.hc_mult
            hc.base.data[2 * n :] = 2.0 * torch.eye(n).flatten()


MIXER_RATE = 0.2  # share of the learning rate: sharp stream mixers make long runs diverge


def optimizer_of(model, rate):
    groups = {}
    for name, p in model.named_parameters():
        mixer = "_hc." in name or "hc_head." in name
        decay = 0.1 if p.dim() >= 2 else 0.0
        groups.setdefault((MIXER_RATE if mixer else 1.0, decay), []).append(p)
    settings = [{"params": p, "weight_decay": decay, "factor": factor} for (factor, decay), p in groups.items()]
    return torch.optim.AdamW(settings, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def clip(model, limit):
    """Clips the gradients; returns the model's norm. The indexer's norm is apart: it must not scale the model's."""
    index = [p for name, p in model.named_parameters() if ".indexer." in name]
    ids = {id(p) for p in index}
    torch.nn.utils.clip_grad_norm_(index, limit)
    return torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if id(p) not in ids], limit)


def token_loss(hidden, weight, targets, weights):
    logits = linear(hidden, weight).float().flatten(0, 1)
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
    weights = weights.flatten()
    prose = (weights == 1.0).float()
    return (losses * weights).sum() / weights.sum(), (losses.detach() * prose).sum() / prose.sum()


@torch.no_grad()
def balance(layers, loads, step_size):
    """Moves the routers' biases towards equal loads."""
    for layer, load in zip(layers, loads):
        if not layer.mlp.is_hash:
            layer.mlp.gate.e_score_correction_bias += step_size * torch.sign(load.mean() - load)


class Run:
    """A training run: its state, which is saved and restored, and its reports."""

    def __init__(self, args):
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        folder = Path(args.model)
        torch.manual_seed(args.seed)
        self.model = NanoForCausalLM(load_config(folder / "config.json"))
        initialise(self.model, args.seed)
        if args.init:
            load_quantised(self.model, args.init)
        self.model.float().cuda()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.optimizer = optimizer_of(self.model, args.rate)
        self.elapsed, self.step, self.tokens = 0.0, 0, 0
        state = self.out / "state.pt"
        if args.resume and state.exists():
            saved = torch.load(state, map_location="cuda")
            if saved.get("recipe") != RECIPE:
                raise SystemExit(f"{state} has another recipe: remove it, or run without --resume")
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.elapsed, self.step, self.tokens = saved["elapsed"], saved["step"], saved["tokens"]

    def save(self):
        state = {
            "recipe": RECIPE,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "elapsed": self.elapsed,
            "step": self.step,
            "tokens": self.tokens,
        }
        torch.save(state, self.out / "state.tmp")
        (self.out / "state.tmp").rename(self.out / "state.pt")

    def log(self, **values):
        line = json.dumps({"t": round(self.elapsed, 1), "step": self.step, "tokens": self.tokens} | values)
        print(line, flush=True)
        with open(self.out / "log.jsonl", "a") as f:
            f.write(line + "\n")

    def phase(self, p):
        """Returns (quantised, sparse, learning rate) at progress p."""
        warm = min(1.0, (self.step + 1) / 150)
        rate = self.args.rate * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(p, 1.0)))) * warm
        return float(p >= self.args.quantise_from), float(p >= self.args.sparse_from), rate

    def evaluate(self, quantised, sparse, count=50, distances=QUICK_DISTANCES):
        self.model.eval()
        pieces, self.model.pieces = self.model.pieces, Pieces()
        text = (Path(self.args.prose) / "heldout.txt").read_text(encoding="utf-8")
        modes = self.model.modes(quantised, sparse)
        torch.save({"model": self.model.state_dict(), "step": self.step}, self.out / f"model-{self.step}.pt")
        result = evaluate_torch.score(self.model, self.tokenizer, text, modes, count, distances)
        self.model.pieces = pieces
        self.model.train()
        self.log(quantised=quantised, sparse=sparse, **result)

    def compare_compiled(self, inputs, targets, weights, modes):
        """Logs the difference of loss and gradients between compiled and plain pieces."""
        compiled, grads, losses = self.model.pieces, [], []
        for pieces in (Pieces(), compiled):
            self.model.pieces = pieces
            hidden, index_loss, _ = self.model.hidden(inputs, modes)
            loss, _ = token_loss(hidden, self.model.lm_head.weight, targets, weights)
            (loss + 0.3 * index_loss).backward()
            grads.append(torch.cat([w.grad.flatten() for w in self.model.parameters()]))
            losses.append(loss.item())
            self.optimizer.zero_grad(set_to_none=True)
        error = ((grads[1] - grads[0]).norm() / grads[0].norm()).item()
        self.log(plain_loss=losses[0], compiled_loss=losses[1], gradient_error=error)

    def train(self):
        args, model = self.args, self.model
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.recompile_limit = 64
        model.pieces, loss_of = Pieces.compiled(), torch.compile(token_loss, dynamic=False)
        progress = multiprocessing.Value("d", self.elapsed / (60 * args.minutes))
        tokenizer_path = str(Path(args.model) / "tokenizer.json")
        data = Batches(str(Path(args.prose) / "train.txt"), tokenizer_path, progress, args.seed + self.step, args.noise)
        loader = torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=args.workers, prefetch_factor=4, pin_memory=True
        )
        batches = iter(loader)
        prose_losses, last, last_save, last_eval, started = [], time.time(), time.time(), self.elapsed, time.time()
        marked = (time.time(), self.tokens)
        model.train()
        while self.elapsed < 60 * args.minutes:
            p = self.elapsed / (60 * args.minutes)
            progress.value = p
            quantised, sparse, rate = self.phase(p)
            modes = model.modes(quantised, sparse)
            inputs, targets, weights = (t.cuda(non_blocking=True) for t in next(batches))
            if self.step == 0:
                self.compare_compiled(inputs, targets, weights, modes)
            hidden, index_loss, loads = model.hidden(inputs, modes)
            loss, prose = loss_of(hidden, model.lm_head.weight, targets, weights)
            (loss + 0.3 * index_loss).backward()
            norm = clip(model, 0.5)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            balance(model.model.layers, loads, 1e-3 if p < 0.9 else 0.0)
            self.step += 1
            self.tokens += inputs.numel()
            prose_losses.append(prose.detach())
            if self.step % 50 == 0:
                mean = torch.stack(prose_losses).mean().item()
                torch.cuda.synchronize()
                speed = (self.tokens - marked[1]) / (time.time() - marked[0])
                marked, prose_losses = (time.time(), self.tokens), []
                spread = (loads.amax(1) / loads.mean(1)).tolist()
                self.log(
                    p=round(p, 3), loss=round(loss.item(), 4), prose=round(mean, 4), index=round(index_loss.item(), 4),
                    norm=round(norm.item(), 3), rate=round(rate, 6), speed=int(speed),
                    spread=[round(s, 2) for s in spread], memory=torch.cuda.max_memory_allocated() >> 30,
                )
            now = time.time()
            self.elapsed += now - last
            last = now
            if now - last_save > 120:
                self.save()
                last_save = now
            if self.elapsed - last_eval > args.evaluate_every:
                self.evaluate(quantised, sparse)
                last_eval = self.elapsed
                marked = (time.time(), self.tokens)
        print(f"trained {self.step} steps, {self.tokens} tokens in {time.time() - started:.0f} s", flush=True)
        self.save()
        self.evaluate(0, 1)
        self.evaluate(1, 1, 100, probes.DISTANCES)
        (self.out / "done").write_text("done\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", required=True, help="folder with train.txt and heldout.txt")
    parser.add_argument("--model", required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--noise", type=float, default=0.15, help="share of prose inputs that are replaced at random")
    parser.add_argument("--sparse-from", type=float, default=0.5)
    parser.add_argument("--quantise-from", type=float, default=0.6)
    parser.add_argument("--evaluate-every", type=float, default=150, help="seconds between two evaluations")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--init", help="start from this exported model.safetensors")
    Run(parser.parse_args()).train()


if __name__ == "__main__":
    main()
