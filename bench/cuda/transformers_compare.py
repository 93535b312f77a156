#!/usr/bin/env python3
"""Times transformers' DeepSeek-V4 at the same truncated shapes, for comparison with
`dsv4 bench --synthetic flash --layers N`.

    bench/cuda/transformers_compare.py [--layers 4] [--prompts 512,2048,8192] [--contexts 512,8192] [--settings ...]

Weights are random BF16, made on the GPU. Prints one JSON line per measurement: the median of several runs after a
warm-up, by CUDA events. transformers has three settings for this model: eager, and batched or grouped matrix
products for the experts. A setting that does not run is reported with its error.
"""

import argparse
import json
import time

import torch
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM


def flash_config(layers):
    ratios = ([0, 0] + [4, 128] * 20 + [4])[:layers]
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    fields = dict(
        vocab_size=129280, hidden_size=4096, num_hidden_layers=layers, num_attention_heads=64, num_key_value_heads=1,
        head_dim=512, qk_rope_head_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024, sliding_window=128,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=6,
        num_hash_layers=min(3, layers), routed_scaling_factor=1.5, swiglu_limit=10.0, index_n_heads=64,
        index_head_dim=128, index_topk=512, hc_mult=4, hc_sinkhorn_iters=20, rms_norm_eps=1e-6, rope_theta=10000.0,
        compress_rope_theta=160000.0, max_position_embeddings=1048576, tie_word_embeddings=False)
    try:
        return DeepseekV4Config(**fields, compress_ratios=ratios)
    except (TypeError, ValueError, KeyError):
        return DeepseekV4Config(**fields, layer_types=[kinds[r] for r in ratios])


def median_ms(run, repeat):
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def make_model(layers, experts_implementation):
    torch.manual_seed(0)
    config = flash_config(layers)
    if experts_implementation:
        config._experts_implementation = experts_implementation
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = DeepseekV4ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2:
                p.normal_(0, p.shape[-1] ** -0.5)
        for name, b in model.named_buffers():
            if name.endswith("tid2eid"):
                b.copy_(torch.rand(b.shape[0], 256, device=b.device).argsort(-1)[:, : b.shape[1]])
    return model.eval()


def measure(model, setting, args):
    vocab = model.config.vocab_size
    base = {"bench": "transformers", "version": transformers.__version__, "setting": setting, "layers": args.layers}
    with torch.inference_mode():
        for tokens in args.prompts:
            ids = torch.randint(2, vocab, (1, tokens), device="cuda")
            ms = median_ms(lambda: model(ids, use_cache=True, logits_to_keep=1), args.repeat)
            print(json.dumps({**base, "phase": "prefill", "tokens": tokens, "ms": ms, "tokens_per_s": tokens / ms * 1e3}), flush=True)
        for context in args.contexts:
            ids = torch.randint(2, vocab, (1, context), device="cuda")
            out = model(ids, use_cache=True, logits_to_keep=1)
            cache, times = out.past_key_values, []
            token = torch.randint(2, vocab, (1, 1), device="cuda")
            for step in range(args.tokens):
                torch.cuda.synchronize()
                start = time.perf_counter()
                out = model(token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
                torch.cuda.synchronize()
                if step >= 4:
                    times.append(time.perf_counter() - start)
            ms = sorted(times)[len(times) // 2] * 1e3
            print(json.dumps({**base, "phase": "decode", "batch": 1, "context": context, "ms_per_step": ms, "tokens_per_s": 1e3 / ms}), flush=True)


def main():
    numbers = lambda text: [int(x) for x in text.split(",") if x]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompts", type=numbers, default=[512, 2048, 8192])
    parser.add_argument("--contexts", type=numbers, default=[512, 8192])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--settings", default="eager,batched_mm,grouped_mm")
    args = parser.parse_args()
    for setting in args.settings.split(","):
        try:
            model = make_model(args.layers, None if setting == "default" else setting)
            measure(model, setting, args)
            del model
        except Exception as error:  # a setting that this version lacks is also a result
            print(json.dumps({"bench": "transformers", "setting": setting, "error": str(error)[:300]}), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
