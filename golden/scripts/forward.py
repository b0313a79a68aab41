#!/usr/bin/env python3
"""What the model computes, in NumPy, float64, one formula after the other.

This is *truth*: it shares no code with the engine or with reference/ and reads safetensors by itself. It is naive on
purpose: K and V are expanded for each head, there is no cache, every row is computed again for every call. The letters
are those of the semantics document: s query position, t cached position, h head, d model dim, n nope dim, r rope dim,
v value dim, c kv latent, q query latent, e expert, V vocabulary, D MTP modules, K draft length, k module or depth.

    forward.py CHECKPOINT --tokens 5,6,7 [--draft mtp-vanilla -K 6] [--greedy 16] [-o OUT.npz]
"""
import argparse
import json
import os
import struct

import numpy as np

from indexer import Indexer, codes

# -- checkpoint -----------------------------------------------------------------------------------

# What a key means when config.json does not give it: the defaults of the architecture's Hugging Face class. The first
# two lines are facts of those classes' code, where no key exists.
DEFAULTS = {
    "DeepseekV2ForCausalLM": dict(
        scoring_func="softmax", rope_interleave=True, moe_layer_freq=1, num_nextn_predict_layers=0,
        topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, n_group=1, topk_group=1,
        first_k_dense_replace=0, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=10000.0),
    "DeepseekV3ForCausalLM": dict(
        scoring_func="sigmoid", moe_layer_freq=1, topk_method="noaux_tc",
        rope_interleave=True, num_nextn_predict_layers=1, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=8,
        topk_group=4, first_k_dense_replace=3, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=10000.0),
    "Glm4MoeLiteForCausalLM": dict(
        scoring_func="sigmoid", moe_layer_freq=1, topk_method="noaux_tc", num_nextn_predict_layers=0,
        rope_interleave=True, norm_topk_prob=True, routed_scaling_factor=1.8, n_group=1, topk_group=1,
        first_k_dense_replace=1, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10000.0),
    "DeepseekV32ForCausalLM": dict(
        scoring_func="sigmoid", moe_layer_freq=1, topk_method="noaux_tc", num_nextn_predict_layers=1,
        rope_interleave=True, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=8, topk_group=4,
        first_k_dense_replace=3, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=10000.0,
        index_topk=2048, index_n_heads=64, index_head_dim=128, indexer_rope_interleave=False,
        index_share_for_mtp_iteration=False),
    "GlmMoeDsaForCausalLM": dict(
        scoring_func="sigmoid", moe_layer_freq=1, topk_method="noaux_tc", num_nextn_predict_layers=1,
        rope_interleave=True, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=1, topk_group=1,
        first_k_dense_replace=3, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10000.0,
        index_topk=2048, index_n_heads=32, index_head_dim=128, indexer_rope_interleave=True,
        index_share_for_mtp_iteration=False),
    "YoutuForCausalLM": dict(                             # no experts
        rope_interleave=True, num_nextn_predict_layers=0, first_k_dense_replace=10 ** 9, moe_layer_freq=1,
        rms_norm_eps=1e-6, tie_word_embeddings=True, rope_theta=10000.0),
    "Mistral4ForCausalLM": dict(
        scoring_func="softmax", moe_layer_freq=1, topk_method="group_limited_top2", num_nextn_predict_layers=0,
        rope_interleave=True, norm_topk_prob=True, routed_scaling_factor=1.0, n_group=1, topk_group=1,
        first_k_dense_replace=0, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=10000.0),
}


def read_config(path, overrides=None):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        given = json.load(f)
    given.update(overrides or {})
    config = dict(DEFAULTS[given["architectures"][0]], **given)
    config["rope_scaling"] = config.get("rope_scaling")
    if "rope_parameters" in given:                        # the newer spelling of rope_theta and rope_scaling
        rope = dict(given["rope_parameters"])
        config["rope_theta"] = rope.pop("rope_theta", config["rope_theta"])
        config["rope_scaling"] = None if rope.get("rope_type", rope.get("type", "default")) == "default" else rope
    return config


def e4m3_table():
    """the value of each of the 256 codes of F8_E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7F is NaN"""
    table = np.empty(256)
    for code in range(256):
        sign, exponent, mantissa = 1 - 2 * (code >> 7), code >> 3 & 15, code & 7
        table[code] = sign * (mantissa / 8 * 2.0 ** -6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    table[[0x7F, 0xFF]] = np.nan
    return table


def read_safetensors(path):
    """name -> (dtype, array of the stored bits)"""
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8", "I32": "<i4"}
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], np.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"]))
            for name, t in header.items()}


def dequantize(stored, block):
    """name -> float64. An FP8 weight is fl32(e4m3 * scale_inv): one rounding to float32, then exact."""
    e4m3, weights = e4m3_table(), {}
    for name, (dtype, bits) in stored.items():
        if name.endswith("_scale_inv"):
            continue
        if dtype == "BF16":
            w = (bits.astype(np.uint32) << 16).view(np.float32)
        elif dtype == "F8_E4M3":
            scale = stored[name + "_scale_inv"][1]
            every = np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)[:bits.shape[0], :bits.shape[1]]
            w = (e4m3[bits] * every.astype(np.float64)).astype(np.float32)
        else:
            w = bits
        weights[name] = w.astype(np.float64)
    return weights


def read_weights(path, block):
    stored = {}
    for file in sorted(os.listdir(path)):
        if file.endswith(".safetensors"):
            stored.update(read_safetensors(os.path.join(path, file)))
    return dequantize(stored, block)


# -- the model ------------------------------------------------------------------------------------

# The first value is the default; what the names mean and who does what: the table of conventions in the semantics.
CONVENTIONS = {
    "rope-angle": ("f64", "f32"), "yarn-scale": ("config", "always", "never"), "latent-eps": ("1e-6", "config"), "group-mask": ("inf", "zero"),
    "main-hidden": ("post-norm", "pre-norm"), "draft-hidden": ("post-norm", "pre-norm"),
    "concat": ("embedding-hidden", "hidden-embedding"), "draft-position": ("hidden", "token"),
    "first-embedding": ("kept", "zeroed"),
    "indexer-rope": ("config", "pairs", "halves"), "indexer-codes": ("hadamard-fp8", "fp8", "hadamard", "none"),
    "indexer-weights": ("f32", "bf16"), "indexer-scores": ("f32", "bf16"), "indexer-ties": ("lowest", "highest"),
    "latent-cache": ("as-is", "fp8"), "mtp-indexer": ("own", "none"), "mtp-set": ("config", "own", "first"),
}


def rms_norm(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def best(values, count):
    """indices of the largest, descending; equal values: the lower index first"""
    return np.argsort(-values, kind="stable")[:count]


def gap(values, count):
    """by how much the last elected value beats the first one that is not: how far a choice is from a tie"""
    ordered = np.sort(values)[::-1]
    return ordered[count - 1] - ordered[count] if count < len(ordered) else np.inf


def yarn_mscale(factor, m):
    return 1.0 if factor <= 1 else 0.1 * m * np.log(factor) + 1


class Model(Indexer):
    def __init__(self, path, overrides=None, **conventions):
        """overrides: keys of config.json to replace; conventions: rope_angle="f32" and so on"""
        c = read_config(path, overrides)
        self.start(c, read_weights(path, c.get("quantization_config", {}).get("weight_block_size", [128, 128])), conventions)

    def start(self, c, weights, conventions):
        self.c, self.w = c, weights
        self.how = {name: values[0] for name, values in CONVENTIONS.items()}
        for name, value in conventions.items():
            assert value in CONVENTIONS[name.replace("_", "-")], (name, value)
            self.how[name.replace("_", "-")] = value
        self.layers, self.modules = c["num_hidden_layers"], c["num_nextn_predict_layers"]
        self.heads, self.n, self.r, self.v = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                              c["v_head_dim"])
        self.eps = c["rms_norm_eps"]
        self.latent_eps = self.eps if self.how["latent-eps"] == "config" else 1e-6
        self.head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
        self.routes = []                                   # one (layer, row, experts, gap) for each routed row
        self.sets = []                                     # one (layer, row, places, margin, scores) for each row of an indexer
        self.kept, self.noise = None, None

    def linear(self, x, name):
        return x @ self.w[name].T

    # -- attention --

    def scale(self):
        """(n+r)^-1/2 x m^2 under YaRN, m = 0.1 mscale_all_dim ln(factor) + 1; Mistral 4 without m^2"""
        y, how = self.c["rope_scaling"], self.how["yarn-scale"]
        mistral = self.c["architectures"][0] == "Mistral4ForCausalLM"
        scaled = y and (not mistral or y.get("apply_yarn_scaling", False) if how == "config" else how == "always")
        m = yarn_mscale(y["factor"], y.get("mscale_all_dim", 0)) if scaled else 1.0
        return (self.n + self.r) ** -0.5 * m * m

    def rope(self, positions):
        """cos and sin [s, r/2], YaRN's ramp and factor applied. rope-angle = f32: every intermediate result is rounded
        to float32, as in code that computes them in float32 with functions that round correctly."""
        y, r, theta = self.c["rope_scaling"], self.r, self.c["rope_theta"]
        fl = (lambda x: x) if self.how["rope-angle"] == "f64" else (lambda x: np.float32(x).astype(np.float64))
        power = fl(float(theta) ** fl(np.arange(0, r, 2) / r))
        frequency, factor = fl(1 / power), 1.0
        if y:
            def dim(rotations):                            # the pair that turns so often within the original context
                return r * np.log(y["original_max_position_embeddings"] / (rotations * 2 * np.pi)) / (2 * np.log(theta))
            low = max(np.floor(dim(y.get("beta_fast", 32))), 0)
            high = min(np.ceil(dim(y.get("beta_slow", 1))), r - 1)
            if low == high:
                high += 0.001
            keep = fl(1 - np.clip(fl((np.arange(r // 2) - low) / fl(high - low)), 0, 1))
            stretched = fl(1 / fl(y["factor"] * power))
            frequency = fl(fl(stretched * fl(1 - keep)) + fl(frequency * keep))
            factor = (yarn_mscale(y["factor"], y.get("mscale", 1)) /
                      yarn_mscale(y["factor"], y.get("mscale_all_dim", 0)))
        angle = fl(np.asarray(positions)[:, None] * frequency)
        return fl(fl(np.cos(angle)) * fl(factor)), fl(fl(np.sin(angle)) * fl(factor))

    def rotate(self, x, cos, sin, interleave):
        """x [..., s, r]: adjacent pairs (2i, 2i+1), or halves (i, i + r/2) without `interleave`"""
        y, half = np.empty_like(x), self.r // 2
        a, b = ((np.s_[..., 0::2], np.s_[..., 1::2]) if interleave else
                (np.s_[..., :half], np.s_[..., half:]))
        y[a] = x[a] * cos - x[b] * sin
        y[b] = x[a] * sin + x[b] * cos
        return y

    def attention(self, layer, p, x, positions, last_row=None):
        """x [s,d] -> [s,d]; row s sees rows t <= s, or those that the indexer chooses"""
        w, rows, heads, n, r, v = self.w, len(x), self.heads, self.n, self.r, self.v
        latent = None
        if self.c.get("q_lora_rank"):
            latent = rms_norm(self.linear(x, p + "q_a_proj.weight"), w[p + "q_a_layernorm.weight"], self.latent_eps)
            q = self.linear(latent, p + "q_b_proj.weight")
        else:
            q = self.linear(x, p + "q_proj.weight")
        q = q.reshape(rows, heads, n + r).transpose(1, 0, 2)                                 # [h,s,n+r]
        kv = self.linear(x, p + "kv_a_proj_with_mqa.weight")                                 # [t,c+r]
        ckv = rms_norm(kv[:, :-r], w[p + "kv_a_layernorm.weight"], self.latent_eps)
        cos, sin = self.rope(positions)
        y = self.c["rope_scaling"] or {}
        if "llama_4_scaling_beta" in y:
            q = q * (1 + y["llama_4_scaling_beta"] * np.log1p(positions // y["original_max_position_embeddings"]))[:, None]
        q_rope, k_rope = (self.rotate(y, cos, sin, self.c["rope_interleave"]) for y in (q[..., n:], kv[:, -r:]))
        if self.how["latent-cache"] == "fp8":
            code, scale = codes(ckv)
            ckv = (code.reshape(rows, -1, 128) * scale[..., None]).reshape(rows, -1)
        score = (self.keys(q[..., :n], ckv, p) + q_rope @ k_rope.T) * self.scale()           # [h,s,t]
        score[:, ~self.index_layer(layer, p, x, latent, cos, sin, last_row)] = -np.inf
        out = self.values(softmax(score), ckv, p)                                            # [h,s,v]
        return self.linear(out.transpose(1, 0, 2).reshape(rows, heads * v), p + "o_proj.weight")

    def expanded(self, ckv, p):
        return (ckv @ self.w[p + "kv_b_proj.weight"].T).reshape(len(ckv), self.heads, self.n + self.v).transpose(1, 0, 2)

    def keys(self, q_nope, ckv, p):
        """[h,s,n], [t,c] -> [h,s,t]"""
        return q_nope @ self.expanded(ckv, p)[..., :self.n].transpose(0, 2, 1)

    def values(self, share, ckv, p):
        """[h,s,t], [t,c] -> [h,s,v]"""
        return share @ self.expanded(ckv, p)[..., self.n:]

    # -- experts --

    def mlp(self, p, x):
        gate, up = self.linear(x, p + "gate_proj.weight"), self.linear(x, p + "up_proj.weight")
        return self.linear(silu(gate) * up, p + "down_proj.weight")

    def route(self, p, x):
        """one row x [d] -> chosen experts in ascending order, their weights, distance to the nearest tie"""
        c, w = self.c, self.w
        experts, groups, top = c["n_routed_experts"], c["n_group"] or 1, c["num_experts_per_tok"]
        logits = w[p + "gate.weight"] @ x
        s = sigmoid(logits) if c["scoring_func"] == "sigmoid" else softmax(logits)
        choice, margin = s.copy(), np.inf
        if c["topk_method"] == "noaux_tc":
            choice += w[p + "gate.e_score_correction_bias"]      # the bias elects experts; weights stay unbiased
        if c["topk_method"] != "greedy" and groups > 1:
            of_group = np.sort(choice.reshape(groups, -1), axis=1)
            score = of_group[:, -1] if c["topk_method"] == "group_limited_greedy" else of_group[:, -2:].sum(axis=1)
            kept, margin = best(score, c["topk_group"]), gap(score, c["topk_group"])
            masked = ~np.isin(np.arange(experts) // (experts // groups), kept)
            zero = self.how["group-mask"] == "zero" or c["topk_method"] == "group_limited_top2"
            choice[masked] = 0.0 if zero else -np.inf
        chosen = np.sort(best(choice, top))
        margin = min(margin, gap(choice, top))
        g = s[chosen]
        if c["scoring_func"] == "sigmoid" or c["topk_method"] == "group_limited_top2":
            g = (g / g.sum() if c["norm_topk_prob"] else g) * c["routed_scaling_factor"]
        else:
            g = g / g.sum() if c["norm_topk_prob"] else g * c["routed_scaling_factor"]
        return chosen, g, margin

    def moe(self, layer, p, x):
        y = np.zeros_like(x)
        for row in range(len(x)):
            chosen, g, margin = self.route(p, x[row])
            self.routes.append((layer, row, tuple(chosen.tolist()), margin))
            for e, g_e in zip(chosen, g):
                y[row] += g_e * self.mlp(f"{p}experts.{e}.", x[row])
        return y + self.mlp(p + "shared_experts.", x) if self.c.get("n_shared_experts") else y

    # -- layers --

    def layer(self, i, x, positions, last_row=None):
        c, p = self.c, f"model.layers.{i}."
        normed = rms_norm(x, self.w[p + "input_layernorm.weight"], self.eps)
        x = x + self.attention(i, p + "self_attn.", normed, positions, last_row)
        y = rms_norm(x, self.w[p + "post_attention_layernorm.weight"], self.eps)
        if i >= self.layers or (i >= c["first_k_dense_replace"] and i % c["moe_layer_freq"] == 0):
            return x + self.moe(i, p + "mlp.", y)
        return x + self.mlp(p + "mlp.", y)

    def target(self, tokens):
        """logits [s,V], hidden [s,d] after model.norm, and before it"""
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.layers):
            x = self.layer(i, x, np.arange(len(tokens)))
        hidden = rms_norm(x, self.w["model.norm.weight"], self.eps)
        return self.linear(hidden, self.head), hidden, x

    # -- multi-token prediction --

    def module(self, k, tokens, h, depth=0, last_row=None):
        """rows i = 0.. of module k: row i takes Emb(tokens[i]), tokens[i] = tok[i+depth+1], and h[i] = h^depth_i.
        Returns logits [i,V], predicting tok[i+depth+2], and the row h^(depth+1)_i that the next module reads.
        last_row: later rows attend to the positions that the indexer chose for this row."""
        w, p = self.w, f"model.layers.{self.layers + k}."
        position = np.arange(len(tokens)) + (depth + 1 if self.how["draft-position"] == "token" else 0)
        e = w.get(p + "embed_tokens.weight", w["model.embed_tokens.weight"])[tokens]
        if self.how["first-embedding"] == "zeroed":
            e = np.where(position[:, None] == 0, 0.0, e)
        pair = [rms_norm(e, w[p + "enorm.weight"], self.eps), rms_norm(h, w[p + "hnorm.weight"], self.eps)]
        if self.how["concat"] == "hidden-embedding":
            pair.reverse()
        x = self.linear(np.concatenate(pair, axis=1), p + "eh_proj.weight")
        y = self.layer(self.layers + k, x, position, last_row)
        g = rms_norm(y, w[p + "shared_head.norm.weight"], self.eps)
        own = p + "shared_head.head.weight"
        logits = self.linear(g, own if own in w else self.head)
        return logits, g if self.how["draft-hidden"] == "post-norm" else y

    def draft(self, tokens, method, K):
        """tokens = tok[0..N-1]; tok[N] is the target's own choice. Returns it, d_1..d_K, and the logits [K,V] and
        rows [K,d] (h^(k+1) of the row that proposed)."""
        logits, hidden, before_norm = self.target(tokens)
        h = hidden if self.how["main-hidden"] == "post-norm" else before_norm
        N, tok = len(tokens), [*tokens, int(np.argmax(logits[-1]))]
        out, rows = [], []
        shares = self.how["mtp-set"] == "first" or (self.how["mtp-set"] == "config" and
                                                    self.c.get("index_share_for_mtp_iteration"))
        for k in range(K):
            if method == "mtp-vanilla":       # depth k: rows 0..N-1 of module k mod D over a history of its own
                z, g = self.module(k % self.modules, tok[k + 1:], h, depth=k)
                h = g
            else:                             # mtp-eagle: module 0; row N-1+j takes the row before and d_j
                z, g = self.module(0, tok[1:], h, last_row=N - 1 if shares else None)
                h = np.concatenate([h, g[-1:]])
            assert len(z) == (N if method == "mtp-vanilla" else N + k)
            tok.append(int(np.argmax(z[-1])))
            out.append(z[-1])
            rows.append(g[-1])
        return tok[N], tok[N + 1:], np.array(out), np.array(rows)

    def greedy(self, tokens, count):
        """the next tokens, and by how much each beats the second best"""
        tok, margins = list(tokens), []
        for _ in range(count):
            logits = self.target(tok)[0][-1]
            tok.append(int(np.argmax(logits)))
            margins.append(float(gap(logits, 1)))
        return tok[len(tokens):], margins


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint")
    p.add_argument("--tokens", required=True)
    p.add_argument("--draft", choices=["mtp-vanilla", "mtp-eagle"])
    p.add_argument("-K", type=int, default=3)
    p.add_argument("--greedy", type=int, default=0)
    p.add_argument("--convention", action="append", default=[], metavar="NAME=VALUE",
                   help="; ".join(f"{name}={'|'.join(values)}" for name, values in CONVENTIONS.items()))
    p.add_argument("-o", help="write logits and hidden (.npz)")
    a = p.parse_args()
    tokens = [int(t) for t in a.tokens.split(",")]
    conventions = dict(c.split("=") for c in a.convention)
    model = Model(a.checkpoint, **{name.replace("-", "_"): value for name, value in conventions.items()})
    logits, hidden, _ = model.target(tokens)
    print("next", int(np.argmax(logits[-1])), "margin", float(gap(logits[-1], 1)))
    if a.draft:
        print("drafts", model.draft(tokens, a.draft, a.K)[1])
    if a.greedy:
        print("greedy", model.greedy(tokens, a.greedy)[0])
    if a.o:
        np.savez(a.o, logits=logits, hidden=hidden)


if __name__ == "__main__":
    main()
