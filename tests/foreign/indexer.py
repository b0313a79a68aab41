"""tests/foreign/indexer.py -- the indexer of sparse attention (DSA): to which tokens a row attends."""

import numpy as np

from arithmetic import F32
from files import E4M3

NEAREST = np.unique(E4M3[np.isfinite(E4M3)]).astype(np.float64)


def hadamard(be, x):
    n = 1
    while n < x.shape[-1]:
        pairs = x.reshape(*x.shape[:-1], -1, 2, n)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        n *= 2
    return (x * F32(x.shape[-1] ** -0.5)).astype(F32)


def codes(be, x):
    """x [..., D]: its codes as numbers, and their scale, a power of two"""
    a = np.maximum(np.abs(x).max(axis=-1, keepdims=True), F32(1e-4))
    scale = np.exp2(np.ceil(np.log2((a * F32(1 / 448)).astype(F32)))).astype(F32)
    scale = be.at("indexer.code-scale", scale, a=a)
    y = np.clip(x / scale, -448, 448).astype(np.float64)
    above = np.clip(np.searchsorted(NEAREST, y), 1, len(NEAREST) - 1)
    low, high = NEAREST[above - 1], NEAREST[above]
    even = np.round(low / 2.0 ** np.maximum(np.floor(np.log2(np.maximum(np.abs(low), 2.0**-9))) - 3, -9)) % 2 == 0
    code = np.where(y - low < high - y, low, np.where(y - low > high - y, high, np.where(even, low, high)))
    return code.astype(F32), scale[..., 0]


def encoded(be, x, what):
    return codes(be, be.at("indexer.hadamard", hadamard(be, x), what=what, x=x))


def rotated(be, x, what):
    """Halves, or adjacent pairs where the config says so; the angles are those of attention."""
    c, r = be.c, be.c.r
    pairs = be.at("indexer.pairs", c.indexer_pairs, what=what)
    cos, sin = be.angles("indexer-" + what)
    cos, sin = (a.reshape((len(x),) + (1,) * (x.ndim - 2) + (r // 2,)) for a in (cos, sin))
    y = np.array(x)
    first, second = (slice(0, r, 2), slice(1, r, 2)) if pairs else (slice(0, r // 2), slice(r // 2, r))
    first, second = be.at("indexer.rotated", (first, second), what=what)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return be.keep(f"self_attn.indexer.{what}", y.reshape(len(x), -1))


def layernorm(be, k):
    mean = be.at("indexer.mean", k.mean(axis=-1, keepdims=True, dtype=F32), k=k)
    y = k - mean
    r = 1 / np.sqrt(np.mean(y * y, axis=-1, keepdims=True, dtype=F32) + F32(be.at("indexer.eps", 1e-6)))
    y = y * r * be.weight("self_attn.indexer.k_norm") + be.at("indexer.bias", be.weight("self_attn.indexer.k_norm.bias"))
    return be.keep("self_attn.indexer.k_norm.output", y.astype(F32))


def choose(be, score, seen):
    """The indices of the largest scores, ascending. Of equal scores, the lowest index comes first."""
    topk = be.at("indexer.topk", be.c.index_topk)
    order = be.at("indexer.order", np.argsort(-score[:seen], kind="stable"), score=score[:seen])
    return np.sort(order[: min(topk, seen)])


def index(be, x, qr):
    """The tokens that each row keeps, [rows, t]; None in a layer that uses those of an earlier layer."""
    c, s, name = be.c, len(x), "self_attn.indexer."
    k = be.linear(name + "wk", x)
    k = rotated(be, layernorm(be, k), "k")
    codes_k, scale_k = encoded(be, k, "k")
    for i, row in enumerate(be.rows):
        slot = be.at("indexer.slot", be.slot(row.index), row=row)
        be.index_keys[be.layer, slot], be.index_scales[be.layer, slot] = codes_k[i], scale_k[i]
    q = be.linear(name + "wq_b", be.at("indexer.query-input", qr, x=x))
    w = be.weight(name + "weights_proj")
    w = be.keep(name + "weights_proj.output", be.at("indexer.weights-proj", be.a.order(x, w).astype(F32), x=x, w=w), dtype="F32")
    q = rotated(be, q.reshape(s, c.index_heads, c.index_dim), "q").reshape(s, c.index_heads, c.index_dim)
    codes_q, scale_q = encoded(be, q, "q")
    of_heads, of_dim = be.at("indexer.scales", (F32(c.index_heads**-0.5), F32(c.index_dim**-0.5)))
    w = be.keep(name + "weights", be.at("indexer.weights", (w * of_heads * scale_q) * of_dim, w=w), dtype="F32")
    indices = list(range(be.rows[-1].index + 1))
    slots = [be.slot(i) for i in indices]
    dots = np.einsum("shd,td->sht", codes_q, be.index_keys[be.layer, slots]).astype(F32)
    dots = be.at("indexer.relu", np.maximum(dots, 0), dots=dots)
    score = be.at("indexer.score", np.einsum("sh,sht->st", w, dots).astype(F32) * be.at("indexer.key-scales", be.index_scales[be.layer, slots]))
    score = be.at("indexer.scores-read", score)
    kept = np.full((s, c.index_topk), -1, np.int32)
    sees = np.zeros(score.shape, bool)
    for i, row in enumerate(be.rows):
        chosen = choose(be, score[i], be.at("indexer.seen", row.index + 1, row=row))
        sees[i, chosen] = True
        kept[i, : min(len(chosen), c.index_topk)] = chosen[: c.index_topk]
    be.keep(name + "kept", kept, dtype="I32")
    return sees
