"""tests/foreign/bugs.py -- what a planted bug is, and the bugs of embeddings, norms, residuals, linear layers, RoPE and heads.

A bug is a function of the bug itself (with its layer, row, expert) that returns the places at which it changes a value (Backend.at)."""

import types

import numpy as np

from arithmetic import F32, to_bf16
from files import scaled

BUGS = {}


def bug(name, where="layer", needs=lambda c, a: True):
    """where: layer (one of the target's), late (not the first), moe, dense, mtp (a module), mtp1 (the second module), target (everything
    of the target), all."""

    def add(make):
        assert name not in BUGS, name
        BUGS[name] = where, needs, make
        return make

    return add


class Bug:
    def __init__(self, name, c, seed, plan):
        self.name = name
        where, _, make = BUGS[name]
        rng = np.random.default_rng([seed, len(name), *name.encode()])
        choices = {"layer": range(c.layers), "late": range(1, c.layers), "moe": range(max(c.dense, 0), c.layers), "dense": range(c.dense),
                   "mtp": range(c.layers, c.layers + c.modules), "mtp1": range(c.layers + 1, c.layers + 2)}.get(where)
        self.layer = None if choices is None else int(rng.choice(choices))
        self.target_only = where == "target"
        self.row = int(rng.integers(1, plan.prompt))  # an index of the prompt
        self.e = int(rng.integers(0, c.E - 1))
        self.memory = types.SimpleNamespace(rows={}, pending=None)
        self.places = make(self)

    def applies(self, be):
        return (self.layer is None or be.layer == self.layer) and not (self.target_only and be.depth is not None)


def applicable(name, c, arithmetic):
    where, needs, _ = BUGS[name]
    return c.modules >= {"mtp": 1, "mtp1": 2}.get(where, 0) and needs(c, arithmetic)


def wide(c, a):
    """Where a detour over BF16 is a fault."""
    return a in ("f32", "tf32", "f16")


def only(field, **wanted):
    """A change for one name: only("name", o_proj=f)"""

    def change(be, value, more):
        f = wanted.get(getattr(more, field).rsplit(".", 1)[-1])
        return f(be, value, more) if f else value

    return change


def last_chunk(be):
    return be.step == 0 and be.rows[-1].index == be.run.plan.prompt - 1


def after_rollback(be):
    return be.step > 0 and be.run.stale > 0


def edit(x, f):
    x = np.array(x)
    f(x)
    return x


def blocks_swapped(x, axis, size, i=0, j=1):
    """Blocks i and j of `size` numbers along an axis change places."""
    order = np.arange(x.shape[axis])
    order[i * size : (i + 1) * size], order[j * size : (j + 1) * size] = (
        np.arange(j * size, (j + 1) * size), np.arange(i * size, (i + 1) * size))
    return np.take(x, order, axis)


def other_layer(*names):
    """The weights of the layer before, or behind the first one that has them."""

    def change(be, full, more):
        if not any(more.name == n or more.name.startswith(n + ".") for n in names):
            return full
        first = be.c.dense if more.name.startswith("mlp") else 0
        other = be.layer - 1 if be.layer > first else be.layer + 1
        return f"model.layers.{other}.{more.name}"

    return {"weight.name": change}


# ---- embedding ----
@bug("embedding-of-next-id", "target")
def _(b):
    return {"tokens": lambda be, t, m: [i + 1 if row.index == b.row else i for i, row in zip(t, be.rows)]}


@bug("embedding-rows-shifted-in-last-chunk", "target")
def _(b):
    return {"embedding": lambda be, x, m: np.roll(x, 1, 0) if last_chunk(be) else x}


@bug("embedding-times-root-d", "target")
def _(b):
    return {"embedding": lambda be, x, m: x * F32(be.c.d**0.5)}


@bug("embedding-of-token-before-in-decoding", "target")
def _(b):
    return {"tokens": lambda be, t, m: [be.run.text[be.rows[0].index - 1]] + t[1:] if be.step else t}


# ---- norms and residuals ----
@bug("latent-eps-times-10", "all")
def _(b):
    return {"norm.eps": only("name", kv_a_layernorm=lambda be, eps, m: eps * 10)}


@bug("latent-eps-missing", "all")
def _(b):
    return {"norm.eps": only("name", kv_a_layernorm=lambda be, eps, m: 0.0)}


@bug("eps-added-to-root")
def _(b):
    def mean(be, value, m):
        root = np.sqrt(value) + F32(1e-3)
        return root * root

    return {"norm.mean": only("name", input_layernorm=mean)}


@bug("norm-one-plus-weight")
def _(b):
    return {"norm.weight": only("name", input_layernorm=lambda be, w, m: w + 1)}


@bug("norm-weight-missing")
def _(b):
    return {"norm.weight": only("name", post_attention_layernorm=lambda be, w, m: np.ones_like(w))}


@bug("norm-weight-of-other-layer")
def _(b):
    return other_layer("input_layernorm")


@bug("norm-subtracts-mean")
def _(b):
    return {"norm.input": only("name", post_attention_layernorm=lambda be, x, m: x - x.mean(-1, keepdims=True, dtype=F32))}


@bug("norm-statistics-of-neighbour-row")
def _(b):
    return {"norm.mean": only("name", post_attention_layernorm=lambda be, v, m: np.roll(v, 1, 0))}


@bug("norm-squares-summed-in-bf16")
def _(b):
    def mean(be, value, m):
        total = np.zeros_like(value)
        for k in range(m.x.shape[-1]):
            total = to_bf16(total + m.x[..., k : k + 1] ** 2)
        return total / F32(m.x.shape[-1])

    return {"norm.mean": only("name", input_layernorm=mean)}


@bug("latent-norm-over-rope-columns")
def _(b):
    def split(be, parts, m):
        b.memory.kv = m.kv
        return parts

    mean = lambda be, v, m: np.mean(b.memory.kv**2, -1, keepdims=True, dtype=F32)
    return {"latent.split": split, "norm.mean": only("name", kv_a_layernorm=mean)}


@bug("latent-norm-missing")
def _(b):
    return {"norm.output": only("name", kv_a_layernorm=lambda be, y, m: m.x)}


@bug("query-norm-missing", needs=lambda c, a: c.q_lora)
def _(b):
    return {"norm.output": only("name", q_a_layernorm=lambda be, y, m: m.x)}


@bug("final-norm-weight-missing", "target")
def _(b):
    return {"norm.weight": lambda be, w, m: np.ones_like(w) if m.name == "model.norm" else w}


@bug("final-norm-twice", "target")
def _(b):
    def twice(be, y, m):
        return y / np.sqrt(np.mean(y * y, -1, keepdims=True, dtype=F32)) * be.weight("model.norm") if m.name == "model.norm" else y

    return {"norm.output": twice}


@bug("residual-missing")
def _(b):
    return {"residual": only("which", attention=lambda be, x, m: m.y)}


@bug("residual-from-normed")
def _(b):
    return {"residual": only("which", mlp=lambda be, x, m: m.normed + m.y)}


@bug("mlp-added-twice")
def _(b):
    return {"residual": only("which", mlp=lambda be, x, m: m.x + m.y + m.y)}


@bug("residual-in-bf16", needs=wide)
def _(b):
    return {"residual": only("which", attention=lambda be, x, m: to_bf16(x))}


@bug("residual-of-row-before-in-last-chunk")
def _(b):
    return {"residual": only("which", mlp=lambda be, x, m: np.roll(m.x, 1, 0) + m.y if last_chunk(be) else x)}


@bug("layer-skipped", "late")
def _(b):
    return {"layer.skip": lambda be, skip, m: True}


# ---- linear layers ----
@bug("weight-rows-shifted")
def _(b):
    return {"linear.weight": only("name", kv_a_proj_with_mqa=lambda be, w, m: np.roll(w, 1, 0))}


@bug("query-heads-swapped")
def _(b):
    swap = lambda be, w, m: blocks_swapped(w, 0, be.c.n + be.c.r)
    return {"linear.weight": only("name", q_proj=swap, q_b_proj=swap)}


@bug("latent-rows-after-rope-rows")
def _(b):
    return {"linear.weight": only("name", kv_a_proj_with_mqa=lambda be, w, m: np.roll(w, be.c.r, 0))}


@bug("output-shard-missing")
def _(b):
    def half(be, x, m):
        return edit(x, lambda y: y[:, y.shape[1] // 2 :].fill(0))

    return {"linear.input": only("name", o_proj=half)}


@bug("dense-down-shard-missing", "dense")
def _(b):
    return {"linear.input": only("name", down_proj=lambda be, x, m: edit(x, lambda y: y[:, y.shape[1] // 2 :].fill(0)))}


@bug("last-8-of-k-not-summed")
def _(b):
    tail = lambda be, x, m: edit(x, lambda y: y[:, -8:].fill(0))
    return {"linear.input": only("name", q_proj=tail, q_a_proj=tail)}


@bug("one-input-not-summed")
def _(b):
    return {"linear.input": only("name", kv_a_proj_with_mqa=lambda be, x, m: edit(x, lambda y: y[:, -1].fill(0)))}


@bug("sum-in-bf16")
def _(b):
    def slow(be, y, m):
        total = np.zeros_like(y)
        for k in range(0, m.x.shape[1], 4):
            total = to_bf16(total + m.x[:, k : k + 4] @ m.w[:, k : k + 4].T)
        return total

    return {"linear.output": only("name", q_proj=slow, q_b_proj=slow)}


@bug("weight-tile-transposed")
def _(b):
    def tile(be, w, m):
        return edit(w, lambda x: x.__setitem__((slice(0, 16), slice(0, 16)), w[:16, :16].T))

    return {"linear.weight": only("name", o_proj=tile)}


@bug("weight-row-doubled")
def _(b):
    return {"linear.weight": only("name", kv_a_proj_with_mqa=lambda be, w, m: edit(w, lambda x: x.__setitem__(5, w[4])))}


@bug("output-heads-swapped-in-weight")
def _(b):
    return {"linear.weight": only("name", o_proj=lambda be, w, m: blocks_swapped(w, 1, be.c.v))}


@bug("output-weight-of-other-layer")
def _(b):
    return other_layer("self_attn.o_proj")


@bug("output-weight-in-int8")
def _(b):
    def int8(be, w, m):
        step = np.abs(w).max(-1, keepdims=True) / F32(127)
        return np.round(w / step) * step

    return {"linear.weight": only("name", o_proj=int8)}


@bug("output-weight-in-bf16", needs=lambda c, a: wide(c, a) and c.method == "group_limited_greedy")
def _(b):
    return {"linear.weight": only("name", o_proj=lambda be, w, m: to_bf16(w))}


@bug("nan-row-in-decoding")
def _(b):
    return {"linear.output": only("name", o_proj=lambda be, y, m: edit(y, lambda z: z[0].fill(np.nan)) if be.step else y)}


@bug("last-row-not-computed")
def _(b):
    zero = lambda be, y, m: edit(y, lambda z: z[-1].fill(0)) if len(y) % 2 and be.step == 0 else y
    return {"linear.output": only("name", q_proj=zero, q_a_proj=zero)}


@bug("row-computed-as-its-neighbour")
def _(b):
    copy = lambda be, y, m: edit(y, lambda z: z.__setitem__(-1, y[-2])) if last_chunk(be) and len(y) > 1 else y
    return {"linear.output": only("name", o_proj=copy)}


def fp8_bug(change):
    def weight(be, w, m):
        if m.full not in be.fp8 or ".o_proj" not in m.full and ".down_proj" not in m.full and ".up_proj" not in m.full:
            return w
        codes, scale, block = be.fp8[m.full]
        return be.a.store(scaled(codes, change(scale), block))

    return {"weight": weight}


@bug("fp8-first-scale-for-all-blocks", "all", needs=lambda c, a: c.fp8)
def _(b):
    return fp8_bug(lambda s: np.full_like(s, s.flat[0]))


@bug("fp8-scales-in-bf16", "all", needs=lambda c, a: c.fp8)
def _(b):
    return fp8_bug(to_bf16)


@bug("fp8-scale-inverted", "all", needs=lambda c, a: c.fp8)
def _(b):
    return fp8_bug(lambda s: 1 / s * (s.mean() ** 2))


# ---- RoPE ----
def halves(be, pairs, m):
    return m.x[..., : be.c.r // 2], m.x[..., be.c.r // 2 :]


def halves_back(be, y, m):
    return y if be.s.halves else np.concatenate([y[..., 0::2], y[..., 1::2]], -1)


@bug("rope-halves")
def _(b):
    return {"rope.pairs": halves, "rope.output": halves_back}


@bug("rope-halves-for-queries-only")
def _(b):
    return {"rope.pairs": only("what", q=halves), "rope.output": only("what", q=halves_back)}


@bug("rope-on-first-columns-of-head")
def _(b):
    return {"query.split": lambda be, parts, m: (m.q[..., be.c.r :], m.q[..., : be.c.r])}


@bug("rope-missing-for-keys")
def _(b):
    return {"rope.cos": only("what", k=lambda be, cs, m: (np.ones_like(cs[0]), np.zeros_like(cs[1])))}


@bug("rope-backwards")
def _(b):
    return {"rope.cos": lambda be, cs, m: (cs[0], -cs[1])}


@bug("rope-theta", "all")
def _(b):
    return {"rope.frequencies": lambda be, fm, m: (fm[0] ** 1.15, fm[1])}


@bug("rope-without-yarn", "all", needs=lambda c, a: c.yarn)
def _(b):
    return {"rope.frequencies": lambda be, fm, m: (be.c.theta ** (-np.arange(0, be.c.r, 2) / be.c.r), fm[1])}


@bug("rope-all-frequencies-scaled", "all", needs=lambda c, a: c.yarn)
def _(b):
    return {"rope.frequencies": lambda be, fm, m: (be.c.theta ** (-np.arange(0, be.c.r, 2) / be.c.r) / be.c.yarn["factor"], fm[1])}


@bug("rope-times-mscale", "all", needs=lambda c, a: c.yarn)
def _(b):
    return {"rope.frequencies": lambda be, fm, m: (fm[0], fm[1] * (0.1 * np.log(be.c.yarn["factor"]) + 1))}


@bug("rope-positions-restart-in-last-chunk", "target")
def _(b):
    return {"rope.positions": lambda be, p, m: [i - p[0] for i in p] if last_chunk(be) else p}


@bug("rope-first-row-of-last-chunk-repeats-position", "target")
def _(b):
    return {"rope.positions": lambda be, p, m: [p[0] - 1] + p[1:] if last_chunk(be) else p}


@bug("rope-positions-count-rejected-drafts", "target")
def _(b):
    return {"rope.positions": lambda be, p, m: [i + be.run.stale for i in p] if after_rollback(be) else p}


@bug("rope-keys-one-late-in-decoding", "target")
def _(b):
    return {"rope.positions": only("what", k=lambda be, p, m: [i + 1 for i in p] if be.step else p)}


@bug("rope-positions-one-late", "layer")
def _(b):
    return {"rope.positions": lambda be, p, m: [i + 1 for i in p]}


@bug("rope-angles-in-bf16", "all")
def _(b):
    return {"rope.angle": lambda be, angle, m: to_bf16(angle)}


@bug("rope-table-in-bf16", "all", needs=wide)
def _(b):
    return {"rope.cos": lambda be, cs, m: (to_bf16(cs[0]), to_bf16(cs[1]))}


@bug("rope-last-pair-not-rotated")
def _(b):
    def last(be, cs, m):
        return edit(cs[0], lambda x: x[..., 0].fill(1)), edit(cs[1], lambda x: x[..., 0].fill(0))

    return {"rope.cos": only("what", q=last)}


# ---- the output head ----
@bug("head-shards-swapped", "target")
def _(b):
    return {"head.weight": lambda be, w, m: np.roll(w, len(w) // 2, 0)}


@bug("head-of-row-before", "target")
def _(b):
    return {"head.input": lambda be, x, m: np.roll(x, 1, 0)}


@bug("head-without-norm", "target")
def _(b):
    return {"head.hidden": lambda be, x, m: m.before}


@bug("head-is-embedding", "target", needs=lambda c, a: not c.tied)
def _(b):
    return {"head.weight": lambda be, w, m: be.a.store(be.weights["model.embed_tokens"])}


@bug("head-shard-missing", "target")
def _(b):
    return {"head.output": lambda be, y, m: edit(y, lambda z: z[:, z.shape[1] // 2 :].fill(0))}


@bug("logits-soft-capped", "target")
def _(b):
    return {"head.output": lambda be, y, m: (np.tanh(y / 30) * 30).astype(F32)}
