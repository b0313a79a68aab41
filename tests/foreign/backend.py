"""tests/foreign/backend.py -- a backend of somebody else: DeepSeek-style models in NumPy, written from docs/SEMANTICS.md and the formulas
of the DeepSeek-V3 report. It knows nothing of Verbatim's code.

The code is the correct one. A planted bug is a function that Backend.at calls at a named place, where it changes the value that is there
(bugs.py). Values have the names of docs/ORACLE.md."""

import dataclasses
import types

import numpy as np

from arithmetic import F32
from attention import attention
from experts import feed_forward

BLOCK = 4  # slots of a block of the paged cache


@dataclasses.dataclass
class Row:
    """One token in a pass, as the manifest lists it. final: in the text, and computed from tokens of the text alone."""

    token: int
    index: int
    position: int
    slot: int
    draft: int = 0
    accepted: object = None
    parent: object = None
    final: bool = True
    sequence: int = 0


@dataclasses.dataclass
class Tap:
    """raw: before it was rounded to dtype."""

    name: str
    at: int
    step: int
    layer: object
    depth: object
    rows: list
    value: np.ndarray
    raw: np.ndarray
    dtype: str
    layout: object


@dataclasses.dataclass
class Style:
    """What correct engines do differently."""

    absorbed: bool = True
    flash: bool = True  # else the scores are rounded before the softmax and after it
    fused_moe: bool = False  # no outputs of single experts are seen, their weights are applied before they are rounded
    moe_sum: str = "f32"  # or dtype: each partial sum is rounded
    norm_twice: bool = False  # x / rms is rounded before it is multiplied by the weight
    rope_dtype: bool = False  # cosines, sines and products are rounded
    silu_rounded: bool = False  # silu(gate) is rounded before it is multiplied by up
    ranks: int = 1  # tensor-parallel: o_proj and down_proj are sums of so many rounded shards
    halves: bool = False  # q_rope and k_rope are stored as two halves
    all_logits: bool = False  # of every row of the prompt
    conventions: dict = dataclasses.field(default_factory=dict)


def frequencies(c):
    """Of RoPE, with the factor of cosines and sines."""
    r = c.r
    f = c.theta ** (-np.arange(0, r, 2) / r)
    y = c.yarn
    if not y:
        return f, 1.0

    def dim(rotations):
        return r * np.log(y["original_max_position_embeddings"] / (rotations * 2 * np.pi)) / (2 * np.log(c.theta))

    low = max(np.floor(dim(y.get("beta_fast", 32))), 0)
    high = min(np.ceil(dim(y.get("beta_slow", 1))), r - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(r // 2) - low) / (high - low), 0, 1)
    return f / y["factor"] * ramp + f * (1 - ramp), yarn_m(y, y.get("mscale", 1)) / yarn_m(y, y.get("mscale_all_dim", 0))


def yarn_m(y, mscale):
    return 0.1 * mscale * float(np.log(y["factor"])) + 1 if y["factor"] > 1 else 1.0


def read_config(config, conventions, length=0):
    """length: of the text, for the convention yarn=max-len"""
    c = types.SimpleNamespace(conventions=conventions)
    c.d, c.layers, c.H, c.vocab = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"))
    c.n, c.r, c.v, c.c = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    c.q_lora = config.get("q_lora_rank")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    c.theta = float(rope.get("rope_theta", config.get("rope_theta", 10000)))
    c.yarn = rope if rope.get("type", rope.get("rope_type")) == "yarn" else None
    if c.yarn and conventions.get("yarn") == "max-len" and length <= c.yarn["original_max_position_embeddings"]:
        c.yarn = None
    c.eps = config["rms_norm_eps"]
    c.latent_eps = c.eps if conventions.get("latent-eps") == "config" else 1e-6
    c.dense = config["first_k_dense_replace"]
    c.E, c.top_k, c.n_group, c.top_group = (config[k] for k in ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"))
    c.sigmoid = config.get("scoring_func", "sigmoid") == "sigmoid"
    c.method = config["topk_method"]
    c.norm_topk, c.factor = config["norm_topk_prob"], config.get("routed_scaling_factor", 2.5)
    c.fp8 = "quantization_config" in config
    c.tied = config.get("tie_word_embeddings", False)
    c.modules = min(2, config.get("num_nextn_predict_layers", 0))
    c.index_topk, c.index_heads, c.index_dim = (config.get("index_" + key, 0) for key in ("topk", "n_heads", "head_dim"))
    c.indexer_pairs = config.get("indexer_rope_interleave", config.get("model_type") == "glm_moe_dsa")
    c.scale = (c.n + c.r) ** -0.5 * (yarn_m(c.yarn, c.yarn.get("mscale_all_dim", 0)) ** 2 if c.yarn else 1)
    return c


class Backend:
    def __init__(self, checkpoint, arithmetic, style, bug=None, slots=64, seed=0, length=0):
        config, weights, self.fp8 = checkpoint
        self.a, self.s, self.bug = arithmetic, style, bug
        self.c = c = read_config(config, style.conventions, length)
        self.weights, self.kept_weights = weights, {}
        self.taps, self.pass_no, self.step, self.layer, self.depth, self.rows = [], 0, 0, None, None, []
        noise = np.random.default_rng(seed)
        # Memory that other sequences used before: whoever reads a row that is not his reads numbers that look right.
        self.latents = arithmetic.store(noise.standard_normal((c.layers + c.modules, slots, c.c)).astype(F32))
        self.ropes = arithmetic.store(noise.standard_normal((c.layers + c.modules, slots, c.r)).astype(F32))
        self.blocks = noise.permutation(slots // BLOCK)
        self.index_keys = noise.integers(-16, 17, (c.layers + c.modules, slots, c.index_dim)).astype(F32)
        self.index_scales = np.ones((c.layers + c.modules, slots), F32)
        self.sees = None  # of the last layer with an indexer

    # ---- the places of bugs, and what is kept ----
    def at(self, place, value, **more):
        change = self.bug.places.get(place) if self.bug else None
        if change is None or not self.bug.applies(self):
            return value
        return change(self, value, types.SimpleNamespace(**more))

    def keep(self, name, raw, dtype=None, rows=None, layout=None):
        """Rounds a value to the dtype of the engine, or to another, and shows it to the dump."""
        value = self.a.store(raw) if dtype is None else raw
        full = name if self.layer is None else f"model.layers.{self.layer}.{name}"
        rows = self.rows if rows is None else rows
        if len(rows):
            self.taps.append(Tap(full, self.pass_no, self.step, self.layer, self.depth, rows, value, raw, dtype or self.a.dtype, layout))
        return value

    def own_weights(self):
        """The names of the weights of this layer."""
        start = f"model.layers.{self.layer}."
        return {name.removeprefix(start) for name in self.weights if name.startswith(start)}

    def weight(self, name):
        """As the engine holds it: rounded to its dtype, except those of routers and indexers, which are F32."""
        full = self.at("weight.name", name if self.layer is None else f"model.layers.{self.layer}.{name}", name=name)
        if full not in self.weights:  # a module without copies
            full = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}.get(name, full)
        if full == "lm_head" and full not in self.weights:  # tied
            full = "model.embed_tokens"
        if full not in self.kept_weights:
            w = self.weights[full].astype(F32)
            exact = full.endswith("weights_proj") or (".mlp.gate" in full and "_proj" not in full)
            self.kept_weights[full] = w if exact else self.a.store(w)
        return self.at("weight", self.kept_weights[full], name=name, full=full)

    # ---- operators ----
    def norm(self, name, x, eps, output=True):
        x = self.at("norm.input", x, name=name)
        eps, w = self.at("norm.eps", eps, name=name, x=x), self.at("norm.weight", self.weight(name), name=name)
        mean = self.at("norm.mean", np.mean(x * x, axis=-1, keepdims=True, dtype=F32), name=name, x=x)
        y = (x / np.sqrt(mean + F32(eps))).astype(F32)
        y = self.a.store(y) * w if self.s.norm_twice else y * w
        y = self.at("norm.output", y, name=name, x=x)
        return self.keep(name + ".output", y) if output else self.a.store(y)

    def linear(self, name, x, keep=True, layout=None, ranks=1):
        """keep: rounded and shown; otherwise as it is before rounding"""
        x, w = self.at("linear.input", x, name=name), self.at("linear.weight", self.weight(name), name=name)
        if ranks > 1:
            cuts = np.array_split(np.arange(w.shape[1]), ranks)
            y = sum(self.a.store(self.a.linear(x[:, cut], w[:, cut])) for cut in cuts)
        else:
            y = self.a.linear(x, w)
        y = self.at("linear.output", y, name=name, x=x, w=w)
        return self.keep(name + ".output", y, layout=layout) if keep else y

    def angles(self, what):
        """Cosines and sines, [rows, r / 2]."""
        c = self.c
        positions = np.array(self.at("rope.positions", [row.position for row in self.rows], what=what))
        f, m = self.at("rope.frequencies", frequencies(c), what=what)
        angle = positions[:, None] * f
        if c.conventions.get("rope-angle") == "f32":
            angle = positions.astype(F32)[:, None] * f.astype(F32)
        angle = self.at("rope.angle", angle, what=what)
        cos, sin = (np.cos(angle) * m).astype(F32), (np.sin(angle) * m).astype(F32)
        return self.at("rope.cos", (cos, sin), what=what)

    def rope(self, what, x):
        """Rotates adjacent pairs of x [rows, ..., r]. Returns and shows what the engine stores."""
        c = self.c
        x = self.at("rope.input", x, what=what)
        cos, sin = (a.reshape((len(x),) + (1,) * (x.ndim - 2) + (c.r // 2,)) for a in self.angles(what))
        first, second = self.at("rope.pairs", (x[..., 0::2], x[..., 1::2]), what=what, x=x)
        if self.s.rope_dtype:
            cos, sin = self.a.store(cos), self.a.store(sin)
            a = self.a.store(first * cos) - self.a.store(second * sin)
            b = self.a.store(second * cos) + self.a.store(first * sin)
        else:
            a, b = first * cos - second * sin, second * cos + first * sin
        y = np.concatenate([a, b], axis=-1) if self.s.halves else np.stack([a, b], axis=-1).reshape(x.shape)
        y = self.at("rope.output", y, what=what, x=x)
        return self.keep(f"self_attn.{what}_rope", y, layout="halves" if self.s.halves else "interleaved")

    def decoder_layer(self, x):
        """x [rows, d], as stored"""
        before = self.keep("input_layernorm.input", self.at("layer.input", x))
        y = attention(self, self.norm("input_layernorm", before, self.c.eps))
        x = self.keep("post_attention_layernorm.input", self.at("residual", before + y, x=before, y=y, which="attention"))
        normed = self.norm("post_attention_layernorm", x, self.c.eps)
        y = feed_forward(self, normed, x)
        return self.keep("output", self.at("residual", x + y, x=x, y=y, which="mlp", normed=normed))

    # ---- passes ----
    def begin(self, rows, layer=None, depth=None):
        self.rows, self.layer, self.depth = rows, layer, depth

    def slot(self, index):
        return int(self.blocks[index // BLOCK] * BLOCK + index % BLOCK)

    def head(self, name, x, rows):
        """Logits of some of the rows of the pass."""
        x = self.at("head.input", x, rows=rows)
        w = self.at("head.weight", self.weight(name))
        self.keep(name + ".output", self.at("head.output", self.a.linear(x[rows], w), x=x, w=w), rows=[self.rows[i] for i in rows])

    def target(self, rows, logits_of):
        """One pass of the model. Returns the hidden states that the modules take."""
        self.begin(rows)
        tokens = self.at("tokens", [row.token for row in rows])
        x = self.keep("model.embed_tokens.output", self.at("embedding", self.weight("model.embed_tokens")[tokens]))
        for layer in range(self.c.layers):
            self.begin(rows, layer)
            if not self.at("layer.skip", False):
                x = self.decoder_layer(x)
        self.begin(rows)
        self.keep("model.norm.input", x)
        hidden = self.norm("model.norm", x, self.c.eps)
        self.head("lm_head", self.at("head.hidden", hidden, before=x), logits_of)
        self.pass_no += 1
        return x if self.c.conventions.get("main-hidden") == "pre-norm" else hidden

    def module(self, k, rows, hidden):
        """One pass of MTP module k; hidden [rows, d]. Returns the hidden states that module k + 1 takes."""
        layer = self.c.layers + k
        self.begin(rows, layer, k)
        tokens = self.at("module.tokens", [row.token for row in rows])
        e = self.weight("embed_tokens")[tokens]
        if self.c.conventions.get("first-embedding") == "zeroed":
            e = np.where(np.array([row.position for row in rows])[:, None] == 0, F32(0), e)
        e = self.keep("embed_tokens.output", self.at("module.embedding", e))
        h = self.keep("hnorm.input", self.at("module.hidden", hidden))
        e, h = self.norm("enorm", e, self.c.eps), self.norm("hnorm", h, self.c.eps)
        pair = [h, e] if self.c.conventions.get("concat") == "hidden-embedding" else [e, h]
        x = self.keep("eh_proj.input", np.concatenate(self.at("module.concat", pair), axis=-1))
        y = self.decoder_layer(self.linear("eh_proj", x))
        self.keep("shared_head.norm.input", y)
        g = self.norm("shared_head.norm", y, self.c.eps)
        self.head("shared_head.head", self.at("head.hidden", g, before=y), [len(rows) - 1])
        self.pass_no += 1
        return y if self.c.conventions.get("draft-hidden") == "pre-norm" else g
