"""Every fused operator against its plain version in f32, outputs and gradients, on BF16 inputs.

    python check_ops.py

A fused operator rounds its results to BF16 (2^-9 relative) and so do the products between; 2 % of the largest value
is several times that, and far below what a wrong formula gives."""
import torch

import ops
from model import Config

LIMIT = 0.02
worst = {}


def compare(name, a, b):
    error = ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()
    worst[name] = error
    print(f"{name:34} {error:.4f}", "" if error < LIMIT else "WRONG")


def both(name, fn, *inputs):
    """Run fn(*inputs) fused in BF16 and plain in f32; inputs that need a gradient are leaves."""
    results = []
    for fused in (True, False):
        ops.C = library if fused else None
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) if torch.is_tensor(t) else t for t in inputs]
        cast = [t.bfloat16() if fused and torch.is_tensor(t) and t.is_floating_point() and getattr(s, "half", True) else t
                for t, s in zip(leaves, inputs)]
        out = [t for t in (lambda y: y if isinstance(y, tuple) else (y,))(fn(*cast)) if t is not None]
        torch.manual_seed(1)
        sum((o.float() * torch.randn(o.shape)).sum() for o in out if o.requires_grad).backward()
        results.append(([o.detach() for o in out], [t.grad for t in leaves if torch.is_tensor(t) and t.requires_grad]))
        ops.weights_changed()
    for i, (a, b) in enumerate(zip(results[0][0], results[1][0])):
        compare(f"{name} output {i}", a, b)
    for i, (a, b) in enumerate(zip(results[0][1], results[1][1])):
        compare(f"{name} gradient {i}", a, b)


def tensor(*shape, half=True, grad=True, scale=1.0):
    t = (torch.randn(*shape) * scale).bfloat16().float().requires_grad_(grad)
    t.half = half                                                            # cast to BF16 for the fused run
    return t


if __name__ == "__main__":
    torch.manual_seed(0)
    ops.use_fused()
    library, cfg, dt = ops.C, Config(n_routed_experts=12, n_group=4, num_experts_per_tok=3, routed_scaling_factor=1.5), torch.bfloat16
    B, T, H, n, r, v = 2, 40, 3, 8, 6, 10
    both("linear", ops.linear, tensor(2, 20, 64), tensor(48, 64, half=False))
    both("linear of experts", ops.linear, tensor(20, 64), tensor(4, 48, 16, half=False))
    kind = lambda: torch.bfloat16 if ops.C else torch.float32
    both("rms_norm of f32", lambda x, w: ops.rms_norm(x, w, 1e-6, kind()), tensor(7, 50, half=False), tensor(50, half=False))
    both("rms_norm of bf16", lambda x, w: ops.rms_norm(x, w, 1e-6, kind()), tensor(7, 50), tensor(50, half=False))
    both("swiglu", lambda a, u: ops.swiglu(a, u), tensor(9, 40), tensor(9, 40))
    gates = ((torch.rand(9, 5) + 0.1) * (torch.rand(9, 5) < 0.5)).requires_grad_()
    gates.half = False
    chosen = (gates.detach() != 0).float()                                   # an expert with weight 0 gets no gradient: it was not chosen
    both("swiglu of experts", lambda a, u, g: ops.swiglu(a, u, g * chosen), tensor(9, 40), tensor(9, 40), gates)
    cos, sin = (f(torch.randn(T, r // 2)) for f in (torch.cos, torch.sin))
    both("heads", lambda q, kv, k: ops.heads(q, kv, k, (cos, sin), H, n), tensor(B, T, H * (n + r)), tensor(B, T, H * (n + v)), tensor(B, T, r))
    both("attend", ops.attend, tensor(B, H, T, n + r), tensor(B, H, T, n + r), tensor(B, H, T, v))
    bias = tensor(12, half=False, grad=False, scale=0.1)
    both("route", lambda z: ops.route(z, bias, cfg), tensor(64, 12, half=False))
    token, soft, weight = torch.randint(0, 100, (30,)), torch.randn(30, 100).softmax(-1), torch.rand(30)
    both("cross_entropy", lambda g, w: ops.cross_entropy(g, w, token)[:2], tensor(30, 16), tensor(100, 16, half=False))
    both("cross_entropy, soft", lambda g, w: ops.cross_entropy(g, w, token, soft.to(g.dtype), weight, True), tensor(30, 16), tensor(100, 16, half=False))
    raise SystemExit(any(e >= LIMIT for e in worst.values()))
