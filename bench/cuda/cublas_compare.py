#!/usr/bin/env python3
"""Times the linears of the model by cuBLAS (torch.matmul, BF16 weights, inputs and outputs, random data), for
comparison with linear_bench (few tokens) and prefill_bench (many).

    bench/cuda/cublas_compare.py [T ...]        default 1 8 64 8192

With few tokens a CUDA graph runs over copies of the weights that together exceed the L2 cache; the figure is the time
of one product. Prints one JSON line per shape and number of tokens, and for 8,192 tokens the routed experts as a loop
over cuBLAS calls.
"""
import json
import statistics
import sys

import torch

# name, groups, N, K
SHAPES = [("q_b", 1, 32768, 1024), ("o_b", 1, 4096, 8192), ("o_a", 8, 1024, 4096), ("in_proj", 1, 1536, 4096),
          ("in_proj_csa", 1, 4160, 4096), ("shared_up", 1, 2048, 4096), ("shared_down", 1, 4096, 2048),
          ("head", 1, 129280, 4096), ("pro_q_b", 1, 65536, 1536), ("pro_o_b", 1, 7168, 16384), ("pro_o_a", 16, 1024, 4096),
          ("pro_in_proj", 1, 2048, 7168), ("pro_shared_up", 1, 3072, 7168), ("pro_shared_down", 1, 7168, 3072)]
# name, experts, D, F, tokens per expert
EXPERTS = [("experts_loop_flash", 256, 4096, 2048, 192), ("experts_loop_pro_half", 192, 7168, 3072, 128)]
COLD_BYTES = 256 << 20


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def measure(work, runs=15):
    for _ in range(3):
        work()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times)


def replayed(work):
    """Returns a function that replays `work` as a CUDA graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def report(case, us, flops, **fields):
    print(json.dumps({"bench": "cublas_bf16", "case": case, **fields, "us": round(us, 2), "tflops": round(1e-6 * flops / us, 1)}),
          flush=True)


def linears(tokens):
    for name, g, n, k in SHAPES:
        copies = max(1, -(-COLD_BYTES // (2 * g * n * k))) if tokens < 1024 else 1
        x = random(g, tokens, k)
        weights = [random(g, n, k) for _ in range(copies)]

        def work():
            for w in weights:
                torch.matmul(x, w.transpose(1, 2))

        us = measure(replayed(work) if copies > 1 else work) / copies
        report(name, us, 2 * tokens * g * n * k, T=tokens, G=g, N=n, K=k, MB=round(2e-6 * g * n * k, 1))


def experts():
    for name, e, d, f, rows in EXPERTS:
        up, down = [random(2 * f, d) for _ in range(64)], [random(d, f) for _ in range(64)]
        x, h = random(rows, d), random(rows, f)

        def work():
            for i in range(e):
                x @ up[i % 64].t()
                h @ down[i % 64].t()

        report(name, measure(replayed(work), 5), 6 * e * rows * d * f, E=e, D=d, F=f, rows=rows)


def main():
    for tokens in [int(t) for t in sys.argv[1:]] or [1, 8, 64, 8192]:
        linears(tokens)
        if tokens == 8192:
            experts()


if __name__ == "__main__":
    main()
