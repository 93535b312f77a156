"""Sinkhorn normalisation of the 4 x 4 stream mixers: a plain reference and a fused Triton version with its gradient.

The forward kernel stores the divisor of every step. The backward kernel runs the steps in reverse and undoes each
division, so that the gradient is exact for the iterations that ran. The gradient of the limit matrix is cheaper, but up
to ten times too large if a mixer has not converged; training then diverges.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU-only machines use the reference
    triton = None

BLOCK = 128


def reference(logits, iterations, eps):
    """Returns comb of logits [..., 4, 4]: softmax over the last axis, then alternating column and row steps."""
    comb = torch.softmax(logits, -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


if triton:

    @triton.jit
    def _offsets(count, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        at = row[:, None, None] * 16 + tl.arange(0, 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        return at, (row < count)[:, None, None]

    @triton.jit
    def _sum_offsets(count, step, steps, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        return (row[:, None] * steps + step) * 4 + tl.arange(0, 4)[None, :], (row < count)[:, None]

    @triton.jit
    def _forward(logits, out, sums, count, iterations, eps, BLOCK: tl.constexpr):
        at, mask = _offsets(count, BLOCK)
        steps = 2 * iterations - 1
        x = tl.load(logits + at, mask=mask, other=0.0)
        x = tl.exp(x - tl.max(x, 2)[:, :, None])
        x = x / tl.sum(x, 2)[:, :, None] + eps
        for i in range(iterations):
            if i > 0:
                total = tl.sum(x, 2) + eps
                where, inside = _sum_offsets(count, 2 * i - 1, steps, BLOCK)
                tl.store(sums + where, total, mask=inside)
                x = x / total[:, :, None]
            total = tl.sum(x, 1) + eps
            where, inside = _sum_offsets(count, 2 * i, steps, BLOCK)
            tl.store(sums + where, total, mask=inside)
            x = x / total[:, None, :]
        tl.store(out + at, x, mask=mask)

    @triton.jit
    def _backward(comb, sums, grad, out, count, iterations, eps, BLOCK: tl.constexpr):
        at, mask = _offsets(count, BLOCK)
        steps = 2 * iterations - 1
        y = tl.load(comb + at, mask=mask, other=0.25)
        g = tl.load(grad + at, mask=mask, other=0.0)
        for k in range(iterations):
            i = iterations - 1 - k
            where, inside = _sum_offsets(count, 2 * i, steps, BLOCK)
            total = tl.load(sums + where, mask=inside, other=1.0)
            g = (g - tl.sum(g * y, 1)[:, None, :]) / total[:, None, :]
            y = y * total[:, None, :]
            if i > 0:
                where, inside = _sum_offsets(count, 2 * i - 1, steps, BLOCK)
                total = tl.load(sums + where, mask=inside, other=1.0)
                g = (g - tl.sum(g * y, 2)[:, :, None]) / total[:, :, None]
                y = y * total[:, :, None]
        y = y - eps  # the softmax's output
        tl.store(out + at, y * (g - tl.sum(g * y, 2)[:, :, None]), mask=mask)


@torch.library.custom_op("nano::sinkhorn", mutates_args=())
def fused(logits: torch.Tensor, iterations: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.contiguous()
    count = logits.numel() // 16
    out, sums = torch.empty_like(logits), logits.new_empty(count, 2 * iterations - 1, 4)
    _forward[(triton.cdiv(count, BLOCK),)](logits, out, sums, count, iterations, eps, BLOCK=BLOCK)
    return out, sums


@fused.register_fake
def _(logits, iterations, eps):
    sums = logits.new_empty(logits.numel() // 16, 2 * iterations - 1, 4)
    return torch.empty_like(logits, memory_format=torch.contiguous_format), sums


@torch.library.custom_op("nano::sinkhorn_backward", mutates_args=())
def fused_backward(
    comb: torch.Tensor, sums: torch.Tensor, grad: torch.Tensor, iterations: int, eps: float
) -> torch.Tensor:
    grad = grad.contiguous()
    out = torch.empty_like(grad)
    count = grad.numel() // 16
    _backward[(triton.cdiv(count, BLOCK),)](comb, sums, grad, out, count, iterations, eps, BLOCK=BLOCK)
    return out


@fused_backward.register_fake
def _(comb, sums, grad, iterations, eps):
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*output)
    ctx.iterations, ctx.eps = inputs[1:]


def _gradient(ctx, grad, _):
    return fused_backward(*ctx.saved_tensors, grad, ctx.iterations, ctx.eps), None, None


fused.register_autograd(_gradient, setup_context=_save)


def sinkhorn(logits, iterations, eps):
    return fused(logits, iterations, eps)[0] if logits.is_cuda else reference(logits, iterations, eps)
