"""tests/foreign/bugs_indexer.py -- the bugs of the indexer of sparse attention, of its cache and of its choice."""

import functools

import numpy as np

from arithmetic import F32
from bugs import after_rollback, bug, only

sparse = functools.partial(bug, needs=lambda c, a: c.index_topk > 0)


# ---- queries and keys ----
@sparse("indexer-rope-pairs-and-halves-swapped", "all")
def _(b):
    return {"indexer.pairs": lambda be, pairs, m: not pairs}


@sparse("indexer-rope-halves-in-queries", "all")
def _(b):
    return {"indexer.pairs": only("what", q=lambda be, pairs, m: not pairs)}


@sparse("indexer-rope-at-the-end", "all")
def _(b):
    def shift(be, parts, m):
        by = be.c.index_dim - be.c.r
        return tuple(slice(p.start + by, p.stop + by, p.step) for p in parts)

    return {"indexer.rotated": shift}


@sparse("indexer-keys-without-rope", "all")
def _(b):
    return {"rope.cos": lambda be, cs, m: (np.ones_like(cs[0]), np.zeros_like(cs[1])) if m.what == "indexer-k" else cs}


@sparse("indexer-keys-one-position-late-in-decoding", "target")
def _(b):
    return {"rope.positions": lambda be, p, m: [i + 1 for i in p] if m.what == "indexer-k" and be.step else p}


@sparse("indexer-norm-without-mean", "all")
def _(b):
    return {"indexer.mean": lambda be, mean, m: 0 * mean}


@sparse("indexer-norm-without-bias", "all")
def _(b):
    return {"indexer.bias": lambda be, bias, m: 0 * bias}


@sparse("indexer-norm-bias-is-weight", "all")
def _(b):
    return {"indexer.bias": lambda be, bias, m: be.weight("self_attn.indexer.k_norm")}


@sparse("indexer-queries-of-previous-row", "all")
def _(b):
    return {"indexer.query-input": lambda be, qr, m: np.concatenate([qr[:1], qr[:-1]])}


# ---- the Hadamard transform and codes ----
@sparse("indexer-without-hadamard", "all")
def _(b):
    return {"indexer.hadamard": lambda be, y, m: m.x}


@sparse("indexer-queries-without-hadamard", "all")
def _(b):
    return {"indexer.hadamard": only("what", q=lambda be, y, m: m.x)}


@sparse("indexer-keys-without-hadamard", "all")
def _(b):
    return {"indexer.hadamard": only("what", k=lambda be, y, m: m.x)}


@sparse("indexer-hadamard-not-scaled", "all")
def _(b):
    return {"indexer.hadamard": only("what", q=lambda be, y, m: y * F32(be.c.index_dim**0.5))}


@sparse("indexer-scale-not-a-power-of-two", "all")
def _(b):
    return {"indexer.code-scale": lambda be, s, m: (m.a / F32(448)).astype(F32)}


@sparse("indexer-key-scales-ignored", "all")
def _(b):
    return {"indexer.key-scales": lambda be, s, m: np.ones_like(s)}


# ---- weights and scores ----
@sparse("indexer-weights-without-head-scale", "all")
def _(b):
    return {"indexer.scales": lambda be, s, m: (F32(1), s[1])}


@sparse("indexer-weights-without-dim-scale", "all")
def _(b):
    return {"indexer.scales": lambda be, s, m: (s[0], F32(1))}


@sparse("indexer-weights-without-query-scale", "all")
def _(b):
    return {"indexer.weights": lambda be, w, m: m.w * F32((be.c.index_heads * be.c.index_dim) ** -0.5)}


@sparse("indexer-weights-of-previous-row", "all")
def _(b):
    return {"indexer.weights-proj": lambda be, w, m: np.concatenate([w[:1], w[:-1]])}


@sparse("indexer-weights-softmax", "all")
def _(b):
    return {"indexer.weights": lambda be, w, m: np.exp(w) / np.exp(w).sum(-1, keepdims=True)}


@sparse("indexer-without-relu", "all")
def _(b):
    return {"indexer.relu": lambda be, dots, m: m.dots}


@sparse("indexer-heads-not-weighted", "all")
def _(b):
    return {"indexer.relu": lambda be, dots, m: np.broadcast_to(dots.mean(axis=1, keepdims=True), dots.shape)}


# ---- the choice ----
@sparse("indexer-topk-one-less", "all")
def _(b):
    return {"indexer.topk": lambda be, k, m: k - 1}


@sparse("indexer-topk-one-more", "all")
def _(b):
    return {"indexer.topk": lambda be, k, m: k + 1}


@sparse("indexer-smallest-scores-kept", "all")
def _(b):
    return {"indexer.order": lambda be, order, m: np.argsort(m.score, kind="stable")}


@sparse("indexer-largest-magnitudes-kept", "all")
def _(b):
    return {"indexer.order": lambda be, order, m: np.argsort(-np.abs(m.score), kind="stable")}


@sparse("indexer-latest-kept", "all")
def _(b):
    return {"indexer.order": lambda be, order, m: np.arange(len(m.score))[::-1]}


@sparse("indexer-next-token-seen", "all")
def _(b):
    return {"indexer.seen": lambda be, n, m: min(n + 1, be.rows[-1].index + 1)}


@sparse("indexer-own-token-not-seen", "all")
def _(b):
    return {"indexer.seen": lambda be, n, m: max(n - 1, 1)}


# ---- the cache, and layers that share a choice ----
@sparse("indexer-key-in-previous-slot-in-decoding", "target")
def _(b):
    return {"indexer.slot": lambda be, slot, m: be.slot(m.row.index - 1) if be.step else slot}


@sparse("indexer-keys-of-rejected-drafts-stay", "target")
def _(b):
    def slot(be, slot, m):
        return be.slot(len(be.run.text) - 1) if after_rollback(be) and m.row.draft == 0 else slot

    return {"indexer.slot": slot}


@sparse("indexer-choice-not-used", "all")
def _(b):
    def all_seen(be, sees, m):
        return np.arange(sees.shape[1])[None, :] <= np.array([row.index for row in be.rows])[:, None]

    return {"indexer.sees": all_seen}


@sparse("indexer-choice-of-the-row-before", "all")
def _(b):
    def before(be, sees, m):
        return np.concatenate([sees[:1], sees[:-1]])

    return {"indexer.sees": before}


@bug("indexer-shared-choice-of-first-layer", "target", needs=lambda c, a: c.index_topk and c.layers > 3)
def _(b):
    def first(be, sees, m):
        if be.layer == 0:
            b.memory.pending = sees
        return b.memory.pending if "self_attn.indexer.wk" not in be.own_weights() else sees

    return {"indexer.sees": first}
