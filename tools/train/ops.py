"""The operators of the model that are more than a product, twice: in plain PyTorch, which says what they compute, and,
after use_fused(), as one C function each (fused.c), several times faster on a CPU: BF16 between operators, one pass over
memory, BF16 copies of the weights made once a step. check_ops.py holds the two together.

Shapes: N rows, B sequences, T rows each, H heads, n nope, r rope, v value, E experts of width I, V vocabulary.
"""
import ctypes
import math
import os
import subprocess

import torch
import torch.nn.functional as F

C = None                                                                     # the library of fused.c


def linear(x, w):
    """x [..,K], w [M,K] -> [..,M], in x's dtype. w [E,M,I] is E experts side by side: K = E*I."""
    if C is not None and x.dtype == torch.bfloat16:
        return Linear.apply(x, w)
    return F.linear(x, side_by_side(w).to(x.dtype))


def side_by_side(w):
    return w if w.dim() == 2 else w.transpose(0, 1).reshape(w.shape[1], -1)


def rms_norm(x, w, eps, dtype):
    """x / sqrt(mean(x^2) + eps) * w, in f32, returned in dtype."""
    if C is not None and dtype == torch.bfloat16:
        return RMSNorm.apply(x, w, eps)
    return F.rms_norm(x.float(), w.shape, w, eps).to(dtype)


def swiglu(a, u, g=None):
    """silu(a) * u [N,E*I], times g [N,E] of the expert that column belongs to."""
    if C is not None and a.dtype == torch.bfloat16:
        return SwiGLU.apply(a, u, torch.ones(a.numel() // a.shape[-1], 1) if g is None else g)
    h = F.silu(a) * u
    return h if g is None else (h.view(*g.shape, -1) * g[..., None].to(h.dtype)).view_as(h)


def rotate(x, rope):
    """Rotate adjacent pairs (2i, 2i+1) of x [..,T,r]; rope is (cos, sin) [T,r/2]."""
    cos, sin = rope
    x0, x1 = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), -1).flatten(-2).to(x.dtype)


def heads(q, kv, k_rope, rope, H, n):
    """q [B,T,H*(n+r)], kv [B,T,H*(n+v)], k_rope [B,T,r] -> query, key [B,H,T,n+r], value [B,H,T,v]."""
    if C is not None and q.dtype == torch.bfloat16:
        return Heads.apply(q, kv, k_rope, rope[0], rope[1], H, n)
    B, T, r = k_rope.shape
    q = q.view(B, T, H, -1).transpose(1, 2)
    kv = kv.view(B, T, H, -1).transpose(1, 2)
    query = torch.cat((q[..., :n], rotate(q[..., n:], rope)), -1)
    key = torch.cat((kv[..., :n], rotate(k_rope, rope)[:, None].expand(B, H, T, r)), -1)
    return query, key, kv[..., n:]


def attend(query, key, value, mask=None):
    """softmax(query key^T / sqrt(n+r)) value -> [B,T,H*v]; mask [T,keys] says who is seen, None: causal, or where one
    query is left, everything."""
    B, H, T, width = query.shape
    if C is not None and query.dtype == torch.bfloat16 and mask is None and T > 1:
        o = Attend.apply(query, key, value)
    else:
        scores = (query @ key.transpose(-1, -2)).float() * width ** -0.5
        if mask is None and T > 1:
            mask = torch.ones(T, T, dtype=torch.bool).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        o = scores.softmax(-1).to(query.dtype) @ value
    return o.transpose(1, 2).reshape(B, T, -1)


def route(logits, bias, cfg):
    """logits [N,E] f32 -> weight of every expert [N,E], zero for those not chosen: sigmoid scores; score + bias elects,
    first topk_group groups by the sum of their two best; the score alone, normalised, weighs. And how often each was chosen."""
    if C is not None:
        return Route.apply(logits, bias, cfg)
    s = torch.sigmoid(logits)
    with torch.no_grad():
        choice = s + bias
        groups = choice.view(-1, cfg.n_group, cfg.n_routed_experts // cfg.n_group)
        best = groups.topk(2, -1)[0].sum(-1).topk(cfg.topk_group, -1)[1]
        keep = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter_(1, best, True)
        choice = groups.masked_fill(~keep[..., None], -math.inf).flatten(1)
        chosen = torch.zeros_like(s).scatter_(1, choice.topk(cfg.num_experts_per_tok, -1)[1], 1.0)
    g = s * chosen
    return g / g.sum(-1, keepdim=True) * cfg.routed_scaling_factor, chosen.sum(0)


def cross_entropy(g, w, token, soft=None, weight=None, want_probs=False):
    """g [N,d], head w [V,d], token [N] -> loss, plain, probs. plain is the mean of -log softmax(g W^T)[token], loss the same
    against (1 - weight) onehot(token) + weight * soft, soft [N,V], weight [N]; probs [N,V] the softmax, if wanted."""
    if C is not None and g.dtype == torch.bfloat16:
        return CrossEntropy.apply(g, w, token, soft, weight, want_probs)
    z = linear(g, w).float()
    logz = z.logsumexp(-1)
    plain = logz - z.gather(1, token[:, None])[:, 0]
    loss = plain if soft is None else weight * (logz - (soft.float() * z).sum(-1)) + (1 - weight) * plain
    return loss.mean(), plain.detach().mean(), (z.detach() - logz.detach()[:, None]).exp() if want_probs else None


# --- fused ---

copies = {}                                                                  # of weights in BF16, until the next step


def use_fused():
    """Compile fused.c beside this file, where it is missing or older, and use it from now on."""
    global C
    here = os.path.dirname(os.path.abspath(__file__))
    source, library = os.path.join(here, "fused.c"), os.path.join(here, "fused.so")
    if not os.path.exists(library) or os.path.getmtime(library) < os.path.getmtime(source):
        subprocess.run(["gcc", "-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-shared", "-fPIC",
                        source, "-o", f"{library}.{os.getpid()}", "-lmvec", "-lm"], check=True)
        os.replace(f"{library}.{os.getpid()}", library)
    C = ctypes.CDLL(library)


def weights_changed():
    copies.clear()


def stored(w):
    """w in BF16, converted once a step."""
    key = (w.data_ptr(), w.shape)
    if key not in copies:
        copies[key] = side_by_side(w.detach()).to(torch.bfloat16)
    return copies[key]


def call(name, *arguments):
    """Call fused.c: tensors as pointers, numbers as long, floats as float."""
    getattr(C, name)(*(None if a is None else ctypes.c_void_p(a.data_ptr()) if torch.is_tensor(a) else
                       ctypes.c_float(a) if isinstance(a, float) else ctypes.c_long(a) for a in arguments))


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        wb = stored(w)
        ctx.save_for_backward(x, wb)
        ctx.shape = w.shape
        return x @ wb.t()

    @staticmethod
    def backward(ctx, dy):
        x, wb = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return dy @ wb, None
        flat = dy.reshape(-1, dy.shape[-1])
        dw = (flat.t() @ x.reshape(-1, x.shape[-1])).float()
        if len(ctx.shape) == 3:
            dw = dw.view(ctx.shape[1], ctx.shape[0], -1).transpose(0, 1)
        return dy @ wb, dw


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        x = x.contiguous()
        d, kind = x.shape[-1], "f32" if x.dtype == torch.float32 else "bf16"
        y, r = torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(x.numel() // d)
        call("rms_norm_" + kind, r.numel(), d, x, w.detach(), eps, y, r)
        ctx.save_for_backward(x, w, r)
        ctx.kind = kind
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, r = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        call("rms_norm_backward_" + ctx.kind, r.numel(), x.shape[-1], x, w.detach(), r, dy.contiguous(), dx, dw)
        return dx, dw, None


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, u, g):
        h = torch.empty_like(a)
        N, E = g.shape
        call("swiglu", N, E, a.shape[-1] // E, a, u, g, h)
        ctx.save_for_backward(a, u, g)
        return h

    @staticmethod
    def backward(ctx, dh):
        a, u, g = ctx.saved_tensors
        N, E = g.shape
        da, du, dg = a.clone(), u.clone(), torch.empty_like(g)
        call("swiglu_backward", N, E, a.shape[-1] // E, da, du, g, dh.contiguous(), dg)
        return da, du, dg


class Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, k_rope, cos, sin, H, n):
        B, T, r = k_rope.shape
        v = kv.shape[-1] // H - n
        query, key, value = (q.new_empty(B, H, T, c) for c in (n + r, n + r, v))
        assert q.is_contiguous() and kv.is_contiguous() and k_rope.stride(2) == 1 and k_rope.stride(0) == T * k_rope.stride(1)
        call("heads", B, T, H, n, r, v, q, kv, k_rope, k_rope.stride(1), cos, sin, query, key, value)
        ctx.save_for_backward(cos, sin)
        ctx.shape = B, T, H, n, r, v
        return query, key, value

    @staticmethod
    def backward(ctx, dquery, dkey, dvalue):
        cos, sin = ctx.saved_tensors
        B, T, H, n, r, v = ctx.shape
        dq, dkv, dk_rope = (dquery.new_empty(B, T, c) for c in (H * (n + r), H * (n + v), r))
        call("heads_backward", B, T, H, n, r, v, cos, sin, dquery.contiguous(), dkey.contiguous(), dvalue.contiguous(),
             dq, dkv, dk_rope)
        return dq, dkv, dk_rope, None, None, None, None


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        B, H, T, width = query.shape
        ctx.scale = width ** -0.5
        p = query @ key.transpose(-1, -2)
        call("causal_softmax", B * H, T, ctx.scale, p)
        ctx.save_for_backward(query, key, value, p)
        return p @ value

    @staticmethod
    def backward(ctx, do):
        query, key, value, p = ctx.saved_tensors
        B, H, T, _ = query.shape
        ds = do @ value.transpose(-1, -2)
        call("causal_softmax_backward", B * H, T, ctx.scale, p, ds)
        return ds @ key, ds.transpose(-1, -2) @ query, p.transpose(-1, -2) @ do


class Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, bias, cfg):
        logits = logits.contiguous()
        N, E = logits.shape
        s, g, load = torch.empty_like(logits), torch.empty_like(logits), torch.zeros(E)
        call("route", N, E, cfg.n_group, cfg.topk_group, cfg.num_experts_per_tok, cfg.routed_scaling_factor, logits, bias,
             s, g, load)
        ctx.save_for_backward(s, g)
        ctx.scale = cfg.routed_scaling_factor
        ctx.mark_non_differentiable(load)
        return g, load

    @staticmethod
    def backward(ctx, dg, _):
        s, g = ctx.saved_tensors
        d = dg.clone()
        call("route_backward", *s.shape, ctx.scale, s, g, d)
        return d, None, None


class CrossEntropy(torch.autograd.Function):
    """The gradient is made in forward, so no f32 matrix of logits is kept."""

    @staticmethod
    def forward(ctx, g, w, token, soft, weight, want_probs):
        wb = stored(w)
        z = g @ wb.t()
        probs = torch.empty_like(z) if want_probs else None
        sums = torch.zeros(2, dtype=torch.float64)
        call("cross_entropy", *z.shape, z, token.contiguous(), soft, weight, probs, sums)
        if any(ctx.needs_input_grad[:2]):
            ctx.save_for_backward(z @ wb, (z.t() @ g).float() if ctx.needs_input_grad[1] else None)
        out = sums[0].float(), sums[1].float(), probs
        ctx.mark_non_differentiable(*[t for t in out[1:] if t is not None])
        return out

    @staticmethod
    def backward(ctx, grad, *_):
        dg, dw = ctx.saved_tensors
        return dg * grad.to(dg.dtype), dw * grad if dw is not None else None, None, None, None, None
