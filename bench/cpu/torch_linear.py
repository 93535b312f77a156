"""Times PyTorch's CPU linears in BF16 at the sizes of ops_bench: one JSON line per case.

  python3 bench/cpu/torch_linear.py [threads]
"""
import json
import sys
import time

import torch

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if threads:
    torch.set_num_threads(threads)
torch.manual_seed(0)
n = k = 4096
copies = 12  # 400 MB of alternating weights: none of them stays in a cache
weights = [torch.randn(n, k).to(torch.bfloat16) for _ in range(copies)]
for tokens in (1, 4, 256, 512):
    x = torch.randn(tokens, k).to(torch.bfloat16)
    with torch.inference_mode():
        for w in weights[:2]:
            torch.nn.functional.linear(x, w)
        times = []
        for _ in range(3):
            for w in weights:
                start = time.perf_counter()
                torch.nn.functional.linear(x, w)
                times.append(time.perf_counter() - start)
    times.sort()
    s = times[len(times) // 2]
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "format": "bf16", "T": tokens, "N": n,
                      "K": k, "ms": round(s * 1e3, 3), "GB_per_s": round(n * k * 2 / s / 1e9, 1),
                      "GMAC_per_s": round(tokens * n * k / s / 1e9, 1)}))
