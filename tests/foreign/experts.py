"""tests/foreign/experts.py -- dense layers, the router, experts."""

import numpy as np

from arithmetic import F32, same, to_bf16


def silu(x):
    with np.errstate(over="ignore"):
        return (x / (1 + np.exp(-x))).astype(F32)


def mlp(be, name, x, rows=None):
    """Before it is rounded. rows: which rows of the pass x holds."""
    x = be.at("mlp.input", x, name=name)
    gate, up = (be.a.store(be.linear(f"{name}.{part}", x, keep=False)) for part in ("gate_proj", "up_proj"))
    gate, up = be.at("mlp.gate_up", (gate, up), name=name)
    act = be.at("mlp.act", silu, name=name)(gate)
    y = be.a.store((be.a.store(act) if be.s.silu_rounded else act) * up)
    y = be.at("mlp.product", y, name=name)
    ranks = be.s.ranks if name == "mlp" else 1
    return be.at("mlp.output", be.linear(f"{name}.down_proj", y, keep=False, ranks=ranks), name=name, rows=rows)


def feed_forward(be, x, before_norm):
    if be.layer < be.c.dense:
        return be.keep("mlp.output", mlp(be, "mlp", x))
    experts, weights = route(be, be.at("router.input", x, before=before_norm))
    total = routed(be, be.at("moe.input", x), experts, weights)
    shared = be.keep("mlp.shared_experts.output", mlp(be, "mlp.shared_experts", x))
    return be.keep("mlp.output", be.at("moe.shared", total + shared, total=total, shared=shared))


def best(x, k):
    """The k largest of each row, the lower index first where two are equal."""
    return np.argsort(-x, axis=-1, kind="stable")[:, :k]


def route(be, x):
    """The experts of each row, [rows, k], and their weights"""
    c, f32, w = be.c, "F32", be.weight("mlp.gate")
    narrow = rounding_of_router(c)
    logits = narrow(be.a.linear(narrow(x), narrow(w)))
    logits = be.keep("mlp.gate.output", be.at("router.logits", logits, x=x), f32)
    if c.sigmoid:
        scores = narrow((1 / (1 + np.exp(-logits))).astype(F32))
    else:
        e = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = e / e.sum(axis=-1, keepdims=True)
    scores = be.keep("mlp.gate.scores", be.at("router.scores", scores, logits=logits), f32)
    choice = scores
    if c.method == "noaux_tc":
        bias = be.at("router.bias", be.weight("mlp.gate.e_score_correction_bias"))
        choice = be.keep("mlp.gate.choice", scores + bias, f32)
    choice = be.at("router.choice", choice)
    allowed = groups(be, choice) if c.n_group > 1 and c.method != "greedy" else choice
    experts = best(allowed, be.at("router.k", c.top_k))
    experts = be.keep("mlp.gate.experts", be.at("router.experts", experts, choice=allowed).astype(np.int32), "I32")
    weights = np.take_along_axis(be.at("router.weighing", scores, choice=choice), experts, 1)
    weights = be.keep("mlp.gate.weights", be.at("router.weights", scale_weights(be, weights, scores), scores=scores), f32)
    return be.at("router.sent", experts), weights


def rounding_of_router(c):
    """DeepSeek's script computes the router in BF16 except its softmax, Hugging Face in F32."""
    return to_bf16 if c.conventions.get("gate") == "bf16" else same


def groups(be, choice):
    c = be.c
    grouped = choice.reshape(len(choice), c.n_group, -1)
    score = np.sort(grouped, axis=-1)[..., -2:].sum(-1, dtype=F32) if c.method == "noaux_tc" else grouped.max(-1)
    score = be.keep("mlp.gate.group_scores", be.at("router.group_scores", score, grouped=grouped), "F32")
    kept = be.at("router.groups", best(score, be.at("router.top_group", c.top_group)), score=score)
    be.keep("mlp.gate.groups", kept.astype(np.int32), "I32")
    mask = np.zeros(score.shape, bool)
    np.put_along_axis(mask, kept, True, 1)
    out = be.at("router.out", F32(0 if c.conventions.get("group-mask") == "zero" else -np.inf))
    return np.where(mask[..., None], grouped, out).reshape(choice.shape)


def scale_weights(be, weights, scores):
    c, narrow = be.c, rounding_of_router(be.c)
    norm, factor = be.at("router.norm", c.norm_topk), be.at("router.factor", c.factor)
    if not norm:
        return narrow(weights * F32(factor))
    total = be.at("router.total", weights.sum(axis=-1, keepdims=True, dtype=F32), scores=scores)
    eps = c.conventions.get("normaliser-eps")
    total = total + F32(1e-20) if eps == "1e-20" else np.maximum(total, F32(2.0**-14)) if eps == "6.1e-5" else total
    return narrow(narrow(weights / narrow(total)) * (F32(factor) if c.sigmoid else F32(1)))


def routed(be, x, experts, weights):
    """The sum over the experts of each row, rounded."""
    total = np.zeros((len(x), be.c.d), F32)
    for e in be.at("moe.order", range(be.c.E)):
        rows, places = np.nonzero(experts == e)
        if not len(rows):
            continue
        rows = be.at("expert.rows", rows, e=e)
        name = f"mlp.experts.{be.at('expert.index', e)}"
        y = be.at("expert.output", mlp(be, name, x[rows], rows), e=e, rows=rows)
        if not be.s.fused_moe:
            y = be.keep(f"mlp.experts.{e}.output", y, rows=[be.rows[i] for i in rows])
        w = be.at("expert.weight", weights[rows, places], e=e)
        y = be.a.store(y * w[:, None])
        np.add.at(total, be.at("expert.back", rows, e=e), be.at("expert.sum", y, e=e))
        if be.s.moe_sum == "dtype":
            total = be.a.store(total)
    return be.a.store(be.at("moe.total", total))
