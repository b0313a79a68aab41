"""tests/foreign/bugs_inside.py -- the bugs of attention, the cache, the router, experts and MTP modules."""

import numpy as np

from arithmetic import F32, to_bf16
from bugs import after_rollback, blocks_swapped, bug, edit, last_chunk, only, other_layer, wide


# ---- scores and softmax ----
def mscale(be):
    return (be.c.scale * (be.c.n + be.c.r) ** 0.5) ** 0.5


def has_mscale(c, a):
    return c.yarn and c.yarn.get("mscale_all_dim")


@bug("scale-without-mscale", "all", needs=has_mscale)
def _(b):
    return {"attention.scale": lambda be, s, m: s / mscale(be) ** 2}


@bug("scale-mscale-not-squared", "all", needs=has_mscale)
def _(b):
    return {"attention.scale": lambda be, s, m: s / mscale(be)}


@bug("scale-of-nope-part", "all")
def _(b):
    return {"attention.scale": lambda be, s, m: be.c.n**-0.5}


@bug("scale-of-cached-width")
def _(b):
    return {"attention.scale": lambda be, s, m: (be.c.c + be.c.r) ** -0.5}


@bug("exp2-without-log2e")
def _(b):
    return {"attention.scale": lambda be, s, m: s * float(np.log(2))}


@bug("softmax-blocks-not-rescaled")
def _(b):
    def shift(be, s, m):
        half = s.shape[-1] // 2
        top, parts = s.max(-1, keepdims=True), []
        for part in (s[..., :half], s[..., half:]):
            largest = part.max(-1, keepdims=True) if part.shape[-1] else top
            parts.append(np.where(np.isfinite(largest), part - np.where(np.isfinite(largest), largest, 0) + top, part))
        return np.concatenate(parts, -1)

    return {"attention.masked": shift}


@bug("softmax-sum-in-bf16")
def _(b):
    def slow(be, total, m):
        total = np.zeros_like(total)
        for t in range(m.e.shape[-1]):
            total = to_bf16(total + m.e[..., t : t + 1])
        return total

    return {"attention.sum": slow}


@bug("softmax-sum-without-last-column")
def _(b):
    return {"attention.sum": lambda be, total, m: m.e[..., :-1].sum(-1, keepdims=True) if be.step else total}


@bug("softmax-one-added-to-sum")
def _(b):
    return {"attention.sum": lambda be, total, m: total + 1}


@bug("probabilities-in-fp8")
def _(b):
    def fp8(be, p, m):
        exponent = np.floor(np.log2(np.maximum(p, F32(2.0**-9)))) - 3
        return (np.round(p / 2.0**exponent) * 2.0**exponent).astype(F32)

    return {"attention.p": fp8}


@bug("rope-scores-missing-in-one-head")
def _(b):
    return {"attention.rope": lambda be, s, m: edit(s, lambda x: x[-1].fill(0))}


@bug("key-heads-swapped")
def _(b):
    return {"attention.kv_b": lambda be, w, m: (np.roll(w[0], 1, 0), w[1])}


@bug("value-heads-swapped")
def _(b):
    return {"attention.kv_b": lambda be, w, m: (w[0], np.roll(w[1], 1, 0))}


@bug("values-before-keys-in-kv-b")
def _(b):
    return {"attention.kv_b": lambda be, w, m: (m.kv_b[:, be.c.v :], m.kv_b[:, : be.c.v])}


@bug("kv-b-of-other-layer")
def _(b):
    return other_layer("self_attn.kv_b_proj")


@bug("output-heads-swapped")
def _(b):
    return {"heads": lambda be, o, m: blocks_swapped(o, 1, be.c.v)}


@bug("last-head-is-first")
def _(b):
    return {"heads": lambda be, o, m: edit(o, lambda x: x.__setitem__((slice(None), slice(-be.c.v, None)), o[:, : be.c.v]))}


# ---- masks and the cache ----
def indices_of(be):
    return np.array([row.index for row in be.rows])[:, None]


@bug("mask-sees-next-row")
def _(b):
    return {"mask": lambda be, sees, m: np.array(m.indices)[None] <= indices_of(be) + 1}


@bug("mask-hides-own-row")
def _(b):
    return {"mask": lambda be, sees, m: np.array(m.indices)[None] < np.maximum(indices_of(be), 1)}


@bug("mask-drafts-see-each-other", "target")
def _(b):
    return {"mask": lambda be, sees, m: np.ones_like(sees) if be.step else sees}


@bug("mask-first-row-of-last-chunk-misses-row-before", "target")
def _(b):
    def hide(be, sees, m):
        return edit(sees, lambda x: x[0, be.rows[0].index - 1 : be.rows[0].index].fill(False)) if last_chunk(be) else sees

    return {"mask": hide}


@bug("mask-chunks-see-themselves-only", "target")
def _(b):
    return {"mask": lambda be, sees, m: sees & (np.array(m.indices)[None] >= be.rows[0].index) if last_chunk(be) else sees}


@bug("mask-first-token-lost-in-decoding", "target")
def _(b):
    return {"mask": lambda be, sees, m: edit(sees, lambda x: x[:, 0].fill(False)) if be.step else sees}


@bug("mask-window-of-8", "layer")
def _(b):
    return {"mask": lambda be, sees, m: sees & (np.array(m.indices)[None] > indices_of(be) - 8)}


@bug("cache-row-of-rejected-draft-not-overwritten", "target")
def _(b):
    def write(be, v, m):
        return ([None] + v[0][1:], *v[1:]) if after_rollback(be) else v

    return {"cache.write": write}


@bug("cache-rejected-drafts-kept", "target")
def _(b):
    def write(be, v, m):
        first, layer = be.rows[0].index, be.layer
        slots = [be.slot(first + j) for j in range(be.run.stale)] if after_rollback(be) else []
        b.memory.rows[layer] = be.latents[layer, slots].copy(), be.ropes[layer, slots].copy()
        return v

    def read(be, v, m):
        return tuple(np.concatenate([x, kept]) for x, kept in zip(v, b.memory.rows[be.layer]))

    return {"cache.write": write, "cache.read": read,
            "mask": lambda be, sees, m: np.pad(sees, ((0, 0), (0, len(b.memory.rows[be.layer][0]))), constant_values=True)}


@bug("cache-row-in-wrong-slot")
def _(b):
    def write(be, v, m):
        return ([be.slot(row.index + 1) if row.index == b.row else s for s, row in zip(v[0], be.rows)], *v[1:])

    return {"cache.write": write}


@bug("cache-block-of-other-sequence", "target")
def _(b):
    def slots(be, v, m):
        return [int(be.blocks[-1]) * 4 + i % 4 if i // 4 == 1 else s for i, s in enumerate(v)] if be.step else v

    return {"cache.slots": slots}


@bug("cache-latent-before-norm")
def _(b):
    return {"cache.write": lambda be, v, m: (v[0], m.kv[:, : be.c.c], v[2])}


@bug("cache-key-before-rope")
def _(b):
    return {"cache.write": lambda be, v, m: (v[0], v[1], m.kv[:, be.c.c :])}


@bug("cache-in-fp8")
def _(b):
    def fp8(be, v, m):
        exponent = np.floor(np.log2(np.maximum(np.abs(v[0]), F32(2.0**-6)))) - 3
        return (np.round(v[0] / 2.0**exponent) * 2.0**exponent).astype(F32), v[1]

    return {"cache.read": fp8}


@bug("cache-in-bf16", needs=wide)
def _(b):
    return {"cache.read": lambda be, v, m: (to_bf16(v[0]), to_bf16(v[1]))}


@bug("cache-of-other-layer", "late")
def _(b):
    return {"cache.layer": lambda be, layer, m: layer - 1}


@bug("cache-written-after-attention-in-decoding", "target")
def _(b):
    def write(be, v, m):
        b.memory.pending = v if be.step else None
        return ([None] * len(v[0]), *v[1:]) if be.step else v

    def later(be, o, m):
        if b.memory.pending:
            slots, latent, k_rope = b.memory.pending
            be.latents[be.layer, slots], be.ropes[be.layer, slots] = latent, k_rope
        return o

    return {"cache.write": write, "heads": later}


# ---- dense layers and experts ----
def gelu(x):
    return (0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))).astype(F32)


def quick(x):
    return (x / (1 + np.exp(-1.702 * x))).astype(F32)


def experts_only(f):
    return lambda be, v, m: f(v) if ".experts." in m.name else v


@bug("dense-gelu", "dense")
def _(b):
    return {"mlp.act": lambda be, act, m: gelu}


@bug("dense-gate-and-up-swapped", "dense")
def _(b):
    return {"mlp.gate_up": lambda be, v, m: v[::-1]}


@bug("dense-activation-clipped", "dense")
def _(b):
    return {"mlp.product": lambda be, y, m: np.clip(y, -np.quantile(np.abs(y), 0.98), np.quantile(np.abs(y), 0.98))}


@bug("experts-quick-silu", "moe")
def _(b):
    return {"mlp.act": experts_only(lambda act: quick)}


@bug("experts-gate-and-up-swapped", "moe")
def _(b):
    return {"mlp.gate_up": experts_only(lambda v: v[::-1])}


@bug("expert-transposed", "moe")
def _(b):
    name = lambda m: m.name == f"mlp.experts.{b.e}.gate_proj"
    return {"linear.weight": lambda be, w, m: np.ascontiguousarray(w.T).reshape(w.shape) if name(m) else w}


@bug("expert-down-rows-shifted", "moe")
def _(b):
    return {"linear.weight": lambda be, w, m: np.roll(w, 1, 0) if m.name == f"mlp.experts.{b.e}.down_proj" else w}


@bug("experts-swapped", "moe")
def _(b):
    return {"expert.index": lambda be, e, m: {b.e: b.e + 1, b.e + 1: b.e}.get(e, e)}


@bug("expert-computes-neighbour-rows", "moe")
def _(b):
    return {"expert.output": lambda be, y, m: np.roll(y, 1, 0)}


@bug("expert-last-row-lost", "moe")
def _(b):
    return {"expert.sum": lambda be, y, m: edit(y, lambda z: z[-1].fill(0)) if len(y) > 1 else y}


@bug("expert-rows-returned-in-wrong-order", "moe")
def _(b):
    return {"expert.back": lambda be, rows, m: np.roll(rows, 1)}


@bug("experts-of-last-rank-missing", "moe")
def _(b):
    return {"moe.order": lambda be, order, m: range((be.c.E + 1) // 2)}


@bug("expert-weights-squared", "moe")
def _(b):
    return {"expert.weight": lambda be, w, m: w * w}


@bug("expert-weights-of-neighbour-row", "moe")
def _(b):
    return {"expert.weight": lambda be, w, m: np.roll(w, 1)}


@bug("experts-summed-in-bf16", "moe", needs=wide)
def _(b):
    return {"moe.total": lambda be, y, m: to_bf16(y)}


@bug("shared-expert-missing", "moe")
def _(b):
    return {"moe.shared": lambda be, y, m: m.total}


@bug("shared-expert-scaled", "moe", needs=lambda c, a: c.factor != 1)
def _(b):
    return {"moe.shared": lambda be, y, m: m.total + m.shared * F32(be.c.factor)}


@bug("shared-expert-of-other-layer", "moe")
def _(b):
    return other_layer("mlp.shared_experts")


@bug("shared-expert-of-row-before", "moe")
def _(b):
    return {"moe.shared": lambda be, y, m: m.total + np.roll(m.shared, 1, 0)}


# ---- the router ----
def noaux(c, a):
    return c.method == "noaux_tc"


def grouped(c, a):
    return c.n_group > 1 and c.method != "greedy"


@bug("router-without-bias", "moe", needs=noaux)
def _(b):
    return {"router.bias": lambda be, w, m: np.zeros_like(w)}


@bug("router-biased-weights", "moe", needs=noaux)
def _(b):
    return {"router.weighing": lambda be, s, m: m.choice}


@bug("router-factor-missing", "moe", needs=lambda c, a: c.factor != 1)
def _(b):
    return {"router.factor": lambda be, f, m: 1.0}


@bug("router-factor-twice", "moe", needs=lambda c, a: c.factor != 1)
def _(b):
    return {"router.factor": lambda be, f, m: f * f}


@bug("router-normalises-or-not", "moe")
def _(b):
    return {"router.norm": lambda be, norm, m: not norm}


@bug("router-normalised-by-all-scores", "moe", needs=lambda c, a: c.norm_topk)
def _(b):
    return {"router.total": lambda be, t, m: m.scores.sum(-1, keepdims=True, dtype=F32)}


@bug("router-group-score-of-one", "moe", needs=lambda c, a: grouped(c, a) and noaux(c, a))
def _(b):
    return {"router.group_scores": lambda be, s, m: m.grouped.max(-1)}


@bug("router-one-group-more", "moe", needs=grouped)
def _(b):
    return {"router.top_group": lambda be, k, m: k + 1}


@bug("router-without-groups", "moe", needs=grouped)
def _(b):
    return {"router.top_group": lambda be, k, m: be.c.n_group}


@bug("router-worst-groups", "moe", needs=grouped)
def _(b):
    return {"router.groups": lambda be, kept, m: np.argsort(m.score, -1, kind="stable")[:, : kept.shape[1]]}


@bug("router-groups-interleaved", "moe", needs=grouped)
def _(b):
    return {"router.choice": lambda be, c, m: c.reshape(len(c), -1, be.c.n_group).transpose(0, 2, 1).reshape(c.shape)}


@bug("router-softmax-or-sigmoid", "moe")
def _(b):
    def other(be, s, m):
        e = np.exp(m.logits - m.logits.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) if be.c.sigmoid else (1 / (1 + np.exp(-m.logits))).astype(F32)

    return {"router.scores": other}


@bug("router-chooses-among-scores-of-4-bits", "moe")
def _(b):
    return {"router.choice": lambda be, c, m: np.round(c * 16) / F32(16)}


@bug("router-one-expert-fewer", "moe")
def _(b):
    return {"router.k": lambda be, k, m: k - 1}


@bug("router-repeats-an-expert", "moe")
def _(b):
    return {"router.experts": lambda be, e, m: edit(e, lambda x: x[:, -1:].__setitem__(slice(None), e[:, :1]))}


@bug("router-second-choice-for-one-row", "moe")
def _(b):
    def second(be, e, m):
        order = np.argsort(-m.choice, -1, kind="stable")
        return edit(e, lambda x: [x[i].__setitem__(-1, order[i, e.shape[1]]) for i, row in enumerate(be.rows) if row.index == b.row])

    return {"router.experts": second}


@bug("router-weights-in-another-order", "moe")
def _(b):
    return {"router.weights": lambda be, w, m: w[:, ::-1]}


@bug("router-input-before-norm", "moe")
def _(b):
    return {"router.input": lambda be, x, m: m.before}


@bug("router-of-row-before", "moe")
def _(b):
    return {"router.sent": lambda be, e, m: np.roll(e, 1, 0)}


@bug("router-logits-in-bf16", "moe", needs=wide)
def _(b):
    return {"router.logits": lambda be, y, m: to_bf16(y)}


@bug("router-of-other-layer", "moe")
def _(b):
    return other_layer("mlp.gate")


# ---- MTP modules ----
def with_modules(c, a):
    return c.modules > 0


@bug("mtp-hidden-before-norm", "all", needs=with_modules)
def _(b):
    def remember(be, x, m):
        if be.depth is None:
            b.memory.rows.update({row.index: x for row, x in zip(be.rows, m.before)})
        return x

    return {"head.hidden": remember,
            "module.source": lambda be, h, m: np.stack([b.memory.rows[i] for i in m.indices]) if m.k == 0 else h}


@bug("mtp-hidden-of-row-before", "all", needs=with_modules)
def _(b):
    return {"module.source": lambda be, h, m: be.run.hidden[m.k][[max(i - 1, 0) for i in m.indices]]}


@bug("mtp-hidden-of-rejected-row", "all", needs=with_modules)
def _(b):
    def source(be, h, m):
        wrong = be.run.N - 1 + be.run.stale
        return edit(h, lambda x: x.__setitem__(-1, be.run.hidden[0][wrong])) if be.run.stale and m.k == 0 and be.step > 1 else h

    return {"module.source": source}


@bug("mtp-1-takes-hidden-of-target", "all", needs=lambda c, a: c.modules > 1)
def _(b):
    return {"module.source": lambda be, h, m: be.run.hidden[0][m.indices]}


@bug("mtp-concat-swapped", "mtp")
def _(b):
    return {"module.concat": lambda be, pair, m: pair[::-1]}


@bug("mtp-eh-proj-halves-swapped", "mtp")
def _(b):
    return {"linear.weight": only("name", eh_proj=lambda be, w, m: np.roll(w, be.c.d, 1))}


@bug("mtp-norms-swapped", "mtp")
def _(b):
    other = {"enorm": "hnorm", "hnorm": "enorm"}
    return {"weight.name": lambda be, full, m: f"model.layers.{be.layer}.{other[m.name]}" if m.name in other else full}


@bug("mtp-hnorm-missing", "mtp")
def _(b):
    return {"norm.output": only("name", hnorm=lambda be, y, m: m.x)}


@bug("mtp-embedding-not-shifted", "mtp")
def _(b):
    return {"module.tokens": lambda be, t, m: [be.run.text[row.index + be.depth] for row in be.rows]}


@bug("mtp-embedding-of-rejected-draft", "mtp")
def _(b):
    return {"module.tokens": lambda be, t, m: [t[0] + 1] + t[1:] if after_rollback(be) else t}


@bug("mtp-first-embedding-zeroed", "mtp")
def _(b):
    return {"module.embedding": lambda be, x, m: np.where(indices_of(be) == 0, F32(0), x)}


@bug("mtp-1-has-weights-of-0", "mtp1")
def _(b):
    return {"weight.name": lambda be, full, m: f"model.layers.{be.layer - 1}.{m.name}" if m.name == "eh_proj" else full}


@bug("mtp-head-without-norm", "mtp")
def _(b):
    return {"head.hidden": lambda be, x, m: m.before}


@bug("mtp-rows-of-drafts-kept", "all", needs=lambda c, a: c.modules > 1)  # module 0 takes no draft
def _(b):
    return {"module.rollback": lambda be, done, m: m.before}


@bug("mtp-positions-one-late", "mtp")
def _(b):
    return {"rope.positions": lambda be, p, m: [i + 1 for i in p]}


@bug("mtp-positions-late-in-decoding", "mtp")
def _(b):
    return {"rope.positions": lambda be, p, m: [i + 1 for i in p] if be.step > 1 else p}


@bug("mtp-cache-of-target", "mtp")
def _(b):
    return {"cache.layer": lambda be, layer, m: 0}


@bug("mtp-head-is-embedding", "mtp", needs=lambda c, a: not c.tied)
def _(b):
    return {"head.weight": lambda be, w, m: be.a.store(be.weights["model.embed_tokens"])}
