"""tests/foreign/attention.py -- multi-head latent attention over a paged cache, absorbed or not."""

import numpy as np

from arithmetic import F32
from indexer import index


def attention(be, x):
    c, s = be.c, len(x)
    if c.q_lora:
        qr = be.norm("self_attn.q_a_layernorm", be.linear("self_attn.q_a_proj", x), c.latent_eps)
        q = be.linear("self_attn.q_b_proj", qr, layout="interleaved")
    else:
        q = be.linear("self_attn.q_proj", x, layout="interleaved")
    kv = be.linear("self_attn.kv_a_proj_with_mqa", x, layout="interleaved")
    q = q.reshape(s, c.H, c.n + c.r)
    q_nope, q_pe = be.at("query.split", (q[..., : c.n], q[..., c.n :]), q=q)
    latent, k_pe = be.at("latent.split", (kv[:, : c.c], kv[:, c.c :]), kv=kv)
    q_rope = be.rope("q", q_pe)
    latent = be.norm("self_attn.kv_a_layernorm", latent, c.latent_eps)
    k_rope = be.rope("k", k_pe)
    write(be, latent, k_rope, kv)
    latents, ropes, sees = read(be)
    if c.index_topk and "self_attn.indexer.wk" in be.own_weights():
        be.sees = index(be, x, qr)
    if c.index_topk:
        sees = be.at("indexer.sees", be.sees)
    o = attend(be, q_nope, q_rope, latents, ropes, sees)
    o = be.keep("self_attn.o_proj.input", be.at("heads", o.reshape(s, c.H * c.v), o=o))
    return be.linear("self_attn.o_proj", o, ranks=be.s.ranks)


def write(be, latent, k_rope, kv):
    slots = [be.slot(row.index) for row in be.rows]
    slots, latent, k_rope = be.at("cache.write", (slots, latent, k_rope), kv=kv)
    for i, slot in enumerate(slots):
        if slot is not None:
            be.latents[be.layer, slot], be.ropes[be.layer, slot] = latent[i], k_rope[i]


def read(be):
    """The cache rows that the pass may see, [t, c] and [t, r], and which of them each row sees, [rows, t]."""
    indices = list(range(be.rows[-1].index + 1))
    indices = be.at("cache.length", indices)
    slots = be.at("cache.slots", [be.slot(i) for i in indices])
    sees = np.array(indices)[None, :] <= np.array([row.index for row in be.rows])[:, None]
    layer = be.at("cache.layer", be.layer)
    latents, ropes = be.at("cache.read", (be.latents[layer, slots], be.ropes[layer, slots]), indices=indices)
    return latents, ropes, be.at("mask", sees, indices=indices)


def attend(be, q_nope, q_rope, latents, ropes, sees):
    """[rows, H, v], before it is rounded"""
    c, a = be.c, be.a
    kv_b = be.weight("self_attn.kv_b_proj").reshape(c.H, c.n + c.v, c.c)
    uk, uv = be.at("attention.kv_b", (kv_b[:, : c.n], kv_b[:, c.n :]), kv_b=kv_b)
    if be.s.absorbed:
        scores = a.einsum("shc,tc->hst", a.store(a.einsum("shn,hnc->shc", q_nope, uk)), latents)
    else:
        scores = a.einsum("shn,thn->hst", q_nope, a.store(a.einsum("tc,hnc->thn", latents, uk)))
    scores = be.at("attention.nope", scores)
    scores = scores + be.at("attention.rope", a.einsum("shr,tr->hst", q_rope, ropes))
    scale = F32(be.at("attention.scale", c.scale))
    scores = scores * scale if be.s.flash else a.store(a.store(scores) * scale)
    scores = np.where(sees, be.at("attention.scores", scores), F32(-np.inf))
    scores = be.at("attention.masked", scores)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = be.at("attention.sum", e.sum(axis=-1, keepdims=True, dtype=F32), e=e)
    p = a.store(e) if be.s.flash else a.store(e / total)
    p = be.at("attention.p", p)
    if be.s.absorbed:
        o = a.einsum("hst,tc->shc", p, latents)
        o = a.store(o / total.transpose(1, 0, 2) if be.s.flash else o)
        return a.einsum("shc,hvc->shv", o, uv)
    o = a.einsum("hst,thv->shv", p, a.store(a.einsum("tc,hvc->thv", latents, uv)))
    return o / total.transpose(1, 0, 2) if be.s.flash else o
