"""The products of prefill_bench by cuBLAS (torch.matmul, BF16 in, BF16 out, random data). One JSON line a shape."""
import json
import statistics

import torch


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


SHAPES = [("q_b", 1, 32768, 1024), ("o_b", 1, 4096, 8192), ("o_a", 8, 1024, 4096), ("in_proj", 1, 1536, 4096),
          ("in_proj_csa", 1, 4160, 4096), ("shared_up", 1, 2048, 4096), ("shared_down", 1, 4096, 2048),
          ("pro_q_b", 1, 65536, 1536), ("pro_o_b", 1, 7168, 16384), ("pro_o_a", 16, 1024, 4096),
          ("pro_in_proj", 1, 2048, 7168), ("pro_shared_up", 1, 3072, 7168), ("pro_shared_down", 1, 7168, 3072)]

tokens = 8192
for name, g, n, k in SHAPES:
    x = torch.randn(g, tokens, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(g, n, k, device="cuda", dtype=torch.bfloat16)
    us = measure(lambda: torch.matmul(x, w.transpose(1, 2)))
    print(json.dumps({"bench": "cublas_bf16", "case": name, "T": tokens, "G": g, "N": n, "K": k, "us": round(us, 1),
                      "tflops": round(2e-6 * tokens * g * n * k / us, 1)}), flush=True)
# The routed experts one by one, every expert the mean number of tokens: what a loop over cuBLAS calls gives.
for name, e, d, f, rows in [("experts_loop_flash", 256, 4096, 2048, 192), ("experts_loop_pro_half", 192, 7168, 3072, 128)]:
    up = [torch.randn(2 * f, d, device="cuda", dtype=torch.bfloat16) for _ in range(min(e, 64))]
    down = [torch.randn(d, f, device="cuda", dtype=torch.bfloat16) for _ in range(min(e, 64))]
    x = torch.randn(rows, d, device="cuda", dtype=torch.bfloat16)
    h = torch.randn(rows, f, device="cuda", dtype=torch.bfloat16)

    def loop():
        for i in range(e):
            x @ up[i % 64].t()
            h @ down[i % 64].t()

    graph = torch.cuda.CUDAGraph()
    loop()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        loop()
    us = measure(graph.replay, 5)
    print(json.dumps({"bench": "cublas_bf16", "case": name, "E": e, "D": d, "F": f, "rows": rows, "us": round(us, 1),
                      "tflops": round(6e-6 * e * rows * d * f / us, 1)}), flush=True)
