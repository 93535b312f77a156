#!/usr/bin/env python3
"""Runs a tiny model of this architecture through its whole context, 1,048,576 positions.

    tools/engine/long_context.py build/release/dsv4 [--positions N] [--threads N] [--work DIR]

Writes a random checkpoint with one layer of each kind (sliding, CSA, HCA). Compares the bits of two runs over a
sixteenth of the length: a prompt in chunks of 512 whose last tokens are decoded one by one, and a prompt in chunks of
4,001. Then runs the full length both ways and compares the log-probabilities of `generate` with the logits of the other
run. Every logit must be finite, one more token must be refused with one line, and memory must grow as `dsv4 inspect
--plan` predicts. Needs only Python's standard library. The indexer's work grows with the square of the length: 65,536
positions take half a minute on two cores, all of them about an hour.
"""

import argparse
import array
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

D, HEADS, HEAD_DIM, ROPE, Q_RANK, GROUPS, O_RANK, VOCAB = 64, 2, 96, 32, 32, 1, 32, 32
EXPERTS, ACTIVE, EXPERT_DIM, INDEX_HEADS, INDEX_DIM, TOPK, STREAMS = 4, 2, 32, 1, 32, 64, 2
RATIOS = [0, 4, 128]
LIMIT = 1 << 20
DECODED = 8

CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": VOCAB, "hidden_size": D,
    "num_hidden_layers": len(RATIOS), "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
    "qk_rope_head_dim": ROPE, "q_lora_rank": Q_RANK, "o_groups": GROUPS, "o_lora_rank": O_RANK, "sliding_window": 128,
    "moe_intermediate_size": EXPERT_DIM, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
    "num_experts_per_tok": ACTIVE, "num_hash_layers": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_DIM, "index_topk": TOPK, "hc_mult": STREAMS, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "max_position_embeddings": LIMIT, "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
    "hidden_act": "silu", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, "compress_ratios": RATIOS,
}


def checkpoint():
    """Returns {name: (dtype, shape, bytes)} with the official names. A matrix [N, K] has variance 1 / K."""
    rng = random.Random(20251121)
    tensors = {}

    def add(name, dtype, shape, values):
        if dtype == "BF16":
            data = b"".join(struct.pack("<f", v)[2:] for v in values)
        else:
            data = struct.pack("<%d%s" % (len(values), {"F32": "f", "I64": "q"}[dtype]), *values)
        tensors[name] = (dtype, shape, data)

    def normal(name, *shape, dtype="BF16", scale=None, mean=0.0):
        scale = shape[-1] ** -0.5 if scale is None else scale
        add(name, dtype, list(shape), [rng.gauss(mean, scale) for _ in range(math.prod(shape))])

    def ones(name, n):
        normal(name, n, scale=0.1, mean=1.0)

    def compressor(name, ratio, dim):
        width = 2 * dim if ratio == 4 else dim
        normal(name + ".ape", ratio, width, dtype="F32", scale=0.5)
        normal(name + ".wkv.weight", width, D)
        normal(name + ".wgate.weight", width, D)
        ones(name + ".norm.weight", dim)

    def hyper(name, mixes, gains):
        normal(name + "_fn", mixes, STREAMS * D, dtype="F32")
        normal(name + "_base", mixes, dtype="F32", scale=0.5)
        normal(name + "_scale", gains, dtype="F32", scale=0.1, mean=0.5)

    def expert(name):
        normal(name + ".w1.weight", EXPERT_DIM, D)
        normal(name + ".w2.weight", D, EXPERT_DIM)
        normal(name + ".w3.weight", EXPERT_DIM, D)

    normal("embed.weight", VOCAB, D, scale=1.0)
    for i, ratio in enumerate(RATIOS):
        layer, attn, ffn = f"layers.{i}", f"layers.{i}.attn", f"layers.{i}.ffn"
        hyper(layer + ".hc_attn", (2 + STREAMS) * STREAMS, 3)
        hyper(layer + ".hc_ffn", (2 + STREAMS) * STREAMS, 3)
        ones(layer + ".attn_norm.weight", D)
        ones(layer + ".ffn_norm.weight", D)
        normal(attn + ".wq_a.weight", Q_RANK, D)
        ones(attn + ".q_norm.weight", Q_RANK)
        normal(attn + ".wq_b.weight", HEADS * HEAD_DIM, Q_RANK)
        normal(attn + ".wkv.weight", HEAD_DIM, D)
        ones(attn + ".kv_norm.weight", HEAD_DIM)
        normal(attn + ".attn_sink", HEADS, dtype="F32", scale=1.0)
        normal(attn + ".wo_a.weight", GROUPS * O_RANK, HEADS * HEAD_DIM // GROUPS)
        normal(attn + ".wo_b.weight", D, GROUPS * O_RANK)
        if ratio:
            compressor(attn + ".compressor", ratio, HEAD_DIM)
        if ratio == 4:
            normal(attn + ".indexer.wq_b.weight", INDEX_HEADS * INDEX_DIM, Q_RANK)
            normal(attn + ".indexer.weights_proj.weight", INDEX_HEADS, D)
            compressor(attn + ".indexer.compressor", 4, INDEX_DIM)
        normal(ffn + ".gate.weight", EXPERTS, D)
        if i < CONFIG["num_hash_layers"]:
            ids = [e for _ in range(VOCAB) for e in rng.sample(range(EXPERTS), ACTIVE)]
            add(ffn + ".gate.tid2eid", "I64", [VOCAB, ACTIVE], ids)
        else:
            normal(ffn + ".gate.bias", EXPERTS, dtype="F32", scale=0.1)
        expert(ffn + ".shared_experts")
        for e in range(EXPERTS):
            expert(f"{ffn}.experts.{e}")
    hyper("hc_head", STREAMS, 1)
    ones("norm.weight", D)
    normal("head.weight", VOCAB, D)
    return tensors


def write_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    header, at, blobs = {}, 0, []
    for name, (dtype, shape, data) in checkpoint().items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Failed(Exception):
    pass


def check(ok, what):
    print(("ok      " if ok else "FAILED  ") + what, flush=True)
    if not ok:
        raise Failed(what)


def run(*args):
    """Returns exit status, stdout, stderr, seconds, and the peak resident size in bytes."""
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([str(a) for a in args], stdout=out, stderr=err)
        while process.poll() is None:  # not ru_maxrss, which starts with this interpreter's size
            held = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            peak = max(peak, int(held[1]) * 1024 if held else 0)
            time.sleep(0.05)
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read().decode(), err.read().decode(), time.monotonic() - start, peak


def must(*args):
    status, out, err, seconds, peak = run(*args)
    check(status == 0, f"dsv4 {' '.join(map(str, args[1:]))}: {seconds:.0f} s, {peak / 2**20:.1f} MiB; {err.strip()}")
    return out, seconds, peak


def rows(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + size])["logits"]["data_offsets"]
    return memoryview(data)[8 + size + begin:8 + size + end]


def finite(bits):
    """Returns whether no float32 has all exponent bits set."""
    words = array.array("I")
    words.frombytes(bits)
    return all(w & 0x7F800000 != 0x7F800000 for w in set(words))


def write_ids(path, n):
    """Writes n token ids with a long period: the high bits of a linear congruential generator."""
    state, ids = 1, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(state >> 59)
    assert 1 << 5 == VOCAB
    path.write_text(" ".join(map(str, ids)) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dsv4")
    parser.add_argument("--positions", type=int, default=LIMIT, help="positions to run, 4096 to 1048576 (default: all)")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder that keeps the model and the results (default: a temporary one)")
    options = parser.parse_args()
    n = options.positions
    if not 4096 <= n <= LIMIT:
        parser.error(f"--positions is {n}: it must be 4096 to {LIMIT}")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        try:
            examine(options.dsv4, work, n, ["--threads", options.threads] if options.threads else [])
        except Failed:
            sys.exit(1)


def row(logits, t):
    return logits[4 * VOCAB * t:4 * VOCAB * (t + 1)]


def differing_row(a, b):
    """Returns the first row of logits that differs in a bit, or None."""
    return None if a == b else next(t for t in range(len(a) // (4 * VOCAB)) if row(a, t) != row(b, t))


def log_softmax(logits):
    largest = max(logits)
    log_sum = math.log(math.fsum(math.exp(v - largest) for v in logits))
    return [v - largest - log_sum for v in logits]


def scratch_bytes(n):
    """Returns the working memory of ops that grows with the context and is not in the plan.

    It has index scores of 8 tokens, and up to 16,384 compressed rows decoded for a step. Both count twice, because the
    old buffer remains until the new one is filled."""
    return 2 * (8 * (n // 4) * 4 + min(16384, n // 4) * HEAD_DIM * 4)


def examine(dsv4, work, n, threads):
    model, short = work / "model", n // 16
    write_model(model)
    for name, count in [("short", short), ("prompt", n - DECODED), ("beyond", n + 1)]:
        write_ids(work / f"{name}.txt", count)
    plan = json.loads(must(dsv4, "inspect", "-m", model, "--plan", "--json")[0])["plan"]
    check(plan["max_context_that_fits"] == LIMIT, f"the plan reports that {LIMIT} tokens fit")
    for args in [["generate"], ["logits", "-o", work / "c.safetensors", "--decode-from", 1]]:
        status, out, err, _, _ = run(dsv4, *args, "-m", model, "--ctx", n, "--token-ids", work / "beyond.txt")
        check(status == 1 and err.count("\n") == 1 and not out, f"{args[0]} refuses token {n + 1}: {err.strip()}")

    def logits(name, *args):
        output = work / f"{name}.safetensors"
        must(dsv4, "logits", "-m", model, "-o", output, *args, *threads)
        return rows(output)

    def generate(name, limit):
        return must(dsv4, "generate", "-m", model, "--token-ids", work / f"{name}.txt", "--ctx", limit, "-n", 100,
                    "--ignore-eos", "--temperature", 0, "--json", "--logprobs", VOCAB, "--prefill-chunk", 512, *threads)

    ids = ["--token-ids", work / "short.txt"]
    a = logits("a", *ids, "--prefill-chunk", 512, "--decode-from", short - DECODED)
    b = logits("b", *ids, "--prefill-chunk", 4001)
    check(len(a) == 4 * VOCAB * short and finite(a), f"{short} rows of finite logits")
    check(a == b, f"the same bits in every row both ways (first that differs: {differing_row(a, b)})")

    small = generate("short", short + DECODED)[2]
    out, _, large = generate("prompt", n)
    result = json.loads(out)
    decoded, timings = result["ids"], result["timings"]
    check(len(decoded) == DECODED + 1, f"generate stops when the context of {n} is full, after {DECODED} tokens")
    print(f"        prompt {timings['prompt_s']:.1f} s, decode {1000 * timings['decode_s'] / DECODED:.2f} ms per token")
    tokens = n - DECODED - short
    grown, kv = large - small, tokens * plan["kv_bytes_per_1k_tokens"] / 1000
    other = scratch_bytes(n) - scratch_bytes(short) + tokens * (4 + 8)  # token ids of prompt and session
    check(0.98 * kv <= grown <= 1.02 * kv + other + 2**20,
          f"memory grew by {grown / 2**20:.1f} MiB; the plan has {kv / 2**20:.1f} MiB of KV, "
          f"scratch and token ids take up to {other / 2**20:.1f} MiB more")

    with open(work / "all.txt", "w") as file:
        file.write((work / "prompt.txt").read_text() + " ".join(map(str, decoded[:DECODED])) + "\n")
    whole = logits("all", "--token-ids", work / "all.txt", "--prefill-chunk", 4001)
    check(len(whole) == 4 * VOCAB * n and finite(whole), f"{n} rows of finite logits")
    check(whole[:len(a)] == a, f"the first {short} rows have the bits of the short run")
    worst = 0.0
    for i, step in enumerate(result["logprobs"]):
        values = array.array("f")
        values.frombytes(row(whole, n - DECODED - 1 + i))
        want = log_softmax(values)
        check(step["id"] == want.index(max(want)), f"row {n - DECODED - 1 + i} chooses {step['id']} both ways")
        worst = max(worst, *(abs(want[top["id"]] - top["logprob"]) for top in step["top"]))
    check(worst <= 2**-21, f"log-probabilities of all {VOCAB} tokens differ by {worst:.1e} at most, float32's last bit")
    last = {bytes(row(whole, t)) for t in range(n - 1000, n)}
    check(len(last) == 1000, "no two of the last 1,000 rows are equal")


if __name__ == "__main__":
    main()
