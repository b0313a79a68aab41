"""DeepSeek sparse attention in NumPy, float64: which positions a query attends to. Formulas: "Sparse attention (DSA)" in
the semantics document. Letters: s query, t position, h head of the indexer, D numbers per head.
"""
import numpy as np


def is_shared(c, layer):
    """whether a layer has no indexer and uses the positions of the last full layer; as transformers' GlmMoeDsaConfig"""
    if layer >= c["num_hidden_layers"]:
        return False                                       # an MTP module
    pattern = c.get("indexer_types") or c.get("index_topk_pattern")
    if pattern:
        return pattern[layer] in ("S", "shared")
    return max(layer - c.get("index_skip_topk_offset", 2) + 1, 0) % max(c.get("index_topk_freq", 1), 1) != 0


def hadamard(size):
    """Sylvester's matrix: natural order"""
    m = np.ones((1, 1))
    while len(m) < size:
        m = np.block([[m, m], [m, -m]])
    return m


def to_e4m3(x):
    """the nearest E4M3 number, ties to the even code, at most 448"""
    a = np.minimum(np.abs(x), 448.0)
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(a, 1e-30))), -6) - 3)
    return np.copysign(np.rint(a / step) * step, x)


def codes(x, size=128):
    """x [..., n]: codes and their scales [..., n/size]. The scale's few steps are float32, as in the official kernel: they decide which
    power of two it is."""
    groups = x.reshape(*x.shape[:-1], -1, size)
    a = np.maximum(np.abs(groups).max(axis=-1), 1e-4).astype(np.float32)
    fraction, exponent = np.frexp(a * (np.float32(1) / np.float32(448)))
    scale = np.exp2(np.where(fraction == 0.5, exponent - 1, exponent).astype(np.float64))
    return to_e4m3(groups / scale[..., None]).reshape(x.shape), scale


def choose(score, count, highest):
    """the places of the largest scores, ascending, and by how much the last one beats the best other one, relative to the
    largest score. Equal scores of exactly 0, sums of max(..., 0) that vanish, are no close call: no rounding moves them."""
    order = np.argsort(-score[::-1], kind="stable") if highest else np.argsort(-score, kind="stable")
    order = len(score) - 1 - order if highest else order
    if count >= len(score):
        return np.sort(order), np.inf
    last, other = score[order[count - 1]], score[order[count]]
    margin = np.inf if last == other == 0 else (last - other) / np.abs(score).max()
    return np.sort(order[:count]), float(margin)


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)          # double rounding: no golden depends on it
    return (u + 0x7FFF + (u >> 16 & 1) & 0xFFFF0000).view(np.float32).astype(np.float64)


class Indexer:
    """the part of forward.Model that chooses positions; self.c, w, how, r, rotate, rope and linear are the model's"""

    def index_layer(self, layer, p, x, latent, cos, sin, last_row=None):
        """[s,t]: True where row s attends to row t. latent: q_a_layernorm's output; cos, sin: the angles of MLA"""
        rows, own = len(x), np.tril(np.ones((len(x), len(x)), bool))
        if not self.c.get("index_topk") or (layer >= self.layers and self.how["mtp-indexer"] == "none"):
            return own
        if is_shared(self.c, layer):
            return self.kept
        score = self.index_scores(p + "indexer.", x, latent, cos, sin)
        kept = np.zeros_like(own)
        for s in range(rows):
            if last_row is not None and s > last_row and s >= self.c["index_topk"]:
                kept[s] = kept[last_row]
                continue
            places, margin = choose(score[s, :s + 1], self.c["index_topk"], self.how["indexer-ties"] == "highest")
            kept[s, places] = True
            self.sets.append((layer, s, places, margin, score[s, :s + 1]))
        self.kept = kept
        return kept

    def noisy(self, x):
        """x, or in a noisy run x with errors of 2^-20 of the largest number of each row, as float32 may make them"""
        if self.noise is None:
            return x
        return x + np.abs(x).max(axis=-1, keepdims=True) * self.noise.uniform(-1, 1, x.shape) * 2.0 ** -20

    def index_scores(self, p, x, latent, cos, sin):
        c, w, rows = self.c, self.w, len(x)
        heads, size = c["index_n_heads"], c["index_head_dim"]
        q = self.linear(latent, p + "wq_b.weight").reshape(rows, heads, size).transpose(1, 0, 2)      # [h,s,D]
        k = self.linear(x, p + "wk.weight")                                                          # [t,D]
        k = k - k.mean(axis=-1, keepdims=True)
        k = k / np.sqrt(np.mean(k * k, axis=-1, keepdims=True) + 1e-6) * w[p + "k_norm.weight"] + w[p + "k_norm.bias"]
        pairs = dict(config=c["indexer_rope_interleave"], pairs=True, halves=False)[self.how["indexer-rope"]]
        q, k = (np.concatenate([self.rotate(y[..., :self.r], cos, sin, pairs), y[..., self.r:]], axis=-1) for y in (q, k))
        how, q_scale, k_scale = self.how["indexer-codes"], np.ones((heads, rows, 1)), np.ones((rows, 1))
        if "hadamard" in how:
            q, k = (y @ hadamard(size) / np.sqrt(size) for y in (q, k))
        if "fp8" in how:
            q, q_scale = codes(self.noisy(q))
            k, k_scale = codes(self.noisy(k))
        fl = bf16 if self.how["indexer-weights"] == "bf16" else lambda y: y
        weight = fl(fl(fl(x) @ fl(w[p + "weights_proj.weight"]).T) * heads ** -0.5) * q_scale[..., 0].T * size ** -0.5     # [s,h]
        dots = np.maximum(q @ k.T, 0)                                                                # [h,s,t]
        score = np.einsum("sh,hst->st", weight, dots) * k_scale[..., 0]
        return bf16(score) if self.how["indexer-scores"] == "bf16" else score
