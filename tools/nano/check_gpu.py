"""Checks the code that needs a GPU: fused Sinkhorn and its gradient, compiled pieces against the plain forward pass."""

import torch

import sinkhorn
from model import NanoForCausalLM, Pieces, load_config


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def main():
    torch.manual_seed(0)
    for spread in (1, 7):  # 7: mixers far from converged
        logits = (spread * torch.randn(5000, 4, 4, device="cuda")).requires_grad_()
        grad = torch.randn(5000, 4, 4, device="cuda")
        results = []
        for function in (sinkhorn.reference, sinkhorn.sinkhorn):
            out = function(logits, 20, 1e-6)
            results.append((out, torch.autograd.grad(out, logits, grad)[0]))
        (out_a, grad_a), (out_b, grad_b) = results
        forward, backward = relative(out_b, out_a), relative(grad_b, grad_a)
        print(f"Sinkhorn, spread {spread}: forward {forward:.1e}, gradient {backward:.1e}", flush=True)
        assert forward < 1e-4 and backward < 1e-3

    config = load_config("models/nano/config.json")
    model = NanoForCausalLM(config, torch.float32).cuda().eval()
    ids = torch.randint(0, config.vocab_size, (2, 700), device="cuda")
    plain, compiled = Pieces(), Pieces.compiled()
    with torch.no_grad():
        for quantised, sparse in ((0, 0), (1, 0), (0, 1), (1, 1)):
            modes = model.modes(quantised, sparse)
            out = {}
            for dtype in (torch.float32, torch.bfloat16):
                for pieces in (plain, compiled):
                    model.activation_dtype, model.pieces = dtype, pieces
                    out[dtype, pieces is compiled] = model(ids, modes)
            exact = out[torch.float32, False]
            print(f"quantised {quantised} sparse {sparse}")
            for (dtype, is_compiled), value in out.items():
                print(f"    {dtype} compiled {is_compiled}: {relative(value, exact):.1e}")


if __name__ == "__main__":
    main()
