#!/usr/bin/env python3
"""Writes golden/gguf/quantized.gguf, a small random model with every quantized type that is supported, and
golden/truth/quantized.{safetensors,json}, what it computes.

The file is written and its weights are taken apart by the gguf package, which is llama.cpp's; the model is forward.py's.
What a quantized matrix multiplies is quantized, too: to integers of 8 bits in groups of 32, d = max|x| / 127.

    golden/scripts/make_quantized.py            (in the repository's root)
"""
import json
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, quants

import forward

V, D, H, C, N, R, W, Q, E = 96, 256, 2, 256, 32, 16, 32, 64, 4   # the letters of docs/SEMANTICS.md; W: value
DENSE, EXPERT, PROMPTS, TOKENS, RUNS = 256, 32, 4, 3, 20

CONFIG = dict(forward.DEFAULTS["DeepseekV3ForCausalLM"], vocab_size=V, hidden_size=D, num_hidden_layers=2,
              num_nextn_predict_layers=1, num_attention_heads=H, kv_lora_rank=C, q_lora_rank=Q, qk_nope_head_dim=N,
              qk_rope_head_dim=R, v_head_dim=W, intermediate_size=DENSE, moe_intermediate_size=EXPERT, n_routed_experts=E,
              n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
              routed_scaling_factor=1.5, rope_scaling=None)

# (name in the file, name in the Hugging Face layout, type, shape). keys and values: attn_k_b and attn_v_b.
OUTSIDE = [("token_embd", "model.embed_tokens", T.Q6_K, (V, D)), ("output", "lm_head", T.Q8_0, (V, D))]
TYPES = [  # of each block: q_a q_b kv_a (keys values, or both) o, then the layer's others
    (T.Q4_K, T.Q8_0, T.Q6_K, (T.Q8_0, T.Q4_K), T.Q5_0),
    (T.Q4_0, T.Q5_1, T.Q8_0, T.Q4_0, T.Q8_0),
    (T.Q5_K, T.F16, T.BF16, (T.F16, T.Q8_0), T.Q4_0),
]
FEED_FORWARD = [
    [("ffn_gate", "mlp.gate_proj", T.Q4_K, (DENSE, D)), ("ffn_up", "mlp.up_proj", T.Q5_K, (DENSE, D)),
     ("ffn_down", "mlp.down_proj", T.Q6_K, (D, DENSE))],
    [("ffn_gate_inp", "mlp.gate", T.F32, (E, D)), ("ffn_gate_exps", "gate_proj", T.Q4_0, (E, EXPERT, D)),
     ("ffn_up_exps", "up_proj", T.Q4_K, (E, EXPERT, D)), ("ffn_down_exps", "down_proj", T.Q5_1, (E, D, EXPERT)),
     ("ffn_gate_shexp", "mlp.shared_experts.gate_proj", T.Q5_K, (EXPERT, D)),
     ("ffn_up_shexp", "mlp.shared_experts.up_proj", T.Q8_0, (EXPERT, D)),
     ("ffn_down_shexp", "mlp.shared_experts.down_proj", T.Q4_0, (D, EXPERT))],
    [("ffn_gate_inp", "mlp.gate", T.Q8_0, (E, D)), ("ffn_gate_exps", "gate_proj", T.Q8_0, (E, EXPERT, D)),
     ("ffn_up_exps", "up_proj", T.Q6_K, (E, EXPERT, D)), ("ffn_down_exps", "down_proj", T.Q8_0, (E, D, EXPERT)),
     ("ffn_gate_shexp", "mlp.shared_experts.gate_proj", T.Q6_K, (EXPERT, D)),
     ("ffn_up_shexp", "mlp.shared_experts.up_proj", T.Q4_K, (EXPERT, D)),
     ("ffn_down_shexp", "mlp.shared_experts.down_proj", T.Q5_0, (D, EXPERT)),
     ("nextn.eh_proj", "eh_proj", T.Q4_K, (D, 2 * D)), ("nextn.shared_head_head", "shared_head.head", T.Q4_0, (V, D))],
]
NORMS = [("attn_norm", "input_layernorm", D), ("ffn_norm", "post_attention_layernorm", D),
         ("attn_q_a_norm", "self_attn.q_a_layernorm", Q), ("attn_kv_a_norm", "self_attn.kv_a_layernorm", C)]
NEXTN = [("nextn.enorm", "enorm", D), ("nextn.hnorm", "hnorm", D), ("nextn.shared_head_norm", "shared_head.norm", D)]


def random_k(rng, kind, shape):
    """Blocks of a K type, which the package takes apart and does not make: scales that give numbers of about 1/sqrt(length)."""
    blocks = int(np.prod(shape)) // 256
    out = np.zeros((blocks, {T.Q4_K: 144, T.Q5_K: 176, T.Q6_K: 210}[kind]), np.uint8)
    size = rng.uniform(0.5, 1.0, blocks) / np.sqrt(shape[-1])
    if kind == T.Q6_K:
        out[:, :192] = rng.integers(0, 256, (blocks, 192))
        out[:, 192:208] = (rng.integers(32, 128, (blocks, 16)) * rng.choice([-1, 1], (blocks, 16))).astype(np.int8).view(np.uint8)
        out[:, 208:] = (size / (80 * 18)).astype("<f2").view(np.uint8).reshape(-1, 2)
        return out
    middle = 7.5 if kind == T.Q4_K else 15.5
    sc = rng.integers(20, 64, (blocks, 8))
    m = np.clip(sc + rng.integers(-3, 4, (blocks, 8)), 0, 63)
    out[:, 0:2] = (size / (42 * middle / 1.7)).astype("<f2").view(np.uint8).reshape(-1, 2)
    out[:, 2:4] = (size / (42 * middle / 1.7) * middle).astype("<f2").view(np.uint8).reshape(-1, 2)
    out[:, 4:8] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    out[:, 8:12] = m[:, :4] | (m[:, 4:] >> 4) << 6
    out[:, 12:16] = sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    out[:, 16:] = rng.integers(0, 256, (blocks, out.shape[1] - 16))
    return out


class Maker:
    def __init__(self, path, seed):
        self.rng = np.random.default_rng(seed)
        self.w, self.quantized = {}, set()
        self.file = GGUFWriter(path, "deepseek2")

    def matrix(self, name, kind, shape):
        """To the file; returns the numbers that it holds."""
        x = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        if kind in (T.Q4_K, T.Q5_K, T.Q6_K):
            data = random_k(self.rng, kind, shape)
            data = data.reshape(*shape[:-1], -1)
        else:
            data = x.astype(np.float16) if kind == T.F16 else quants.quantize(x, kind)
        self.file.add_tensor(name + ".weight", data, raw_dtype=kind)
        return quants.dequantize(data, kind).astype(np.float64).reshape(shape)

    def linear(self, name, hf, kind, shape):
        self.w[hf + ".weight"] = self.matrix(name, kind, shape)
        if kind not in (T.F32, T.F16, T.BF16) and not hf.endswith("mlp.gate"):   # the router's input is never quantized
            self.quantized.add(hf + ".weight")

    def vector(self, name, hf, length, middle=1.0, ending=".weight"):
        x = (middle + 0.2 * self.rng.standard_normal(length)).astype(np.float32)
        self.file.add_tensor(name + ending, x)
        self.w[hf] = x.astype(np.float64)

    def heads(self, i, kinds):
        p, own = f"blk.{i}.", f"model.layers.{i}.self_attn."
        if not isinstance(kinds, tuple):       # an old file: blocks run along c, W_uk is as it is decoded
            self.w[own + "kv_b_proj.weight"] = self.matrix(p + "attn_kv_b", kinds, (H * (N + W), C))
            self.quantized.add(own + "values")
            return
        keys, values = self.matrix(p + "attn_k_b", kinds[0], (H, C, N)), self.matrix(p + "attn_v_b", kinds[1], (H, W, C))
        self.w[own + "kv_b_proj.weight"] = np.concatenate([keys.transpose(0, 2, 1), values], axis=1).reshape(-1, C)
        for kind, which in zip(kinds, ("keys", "values")):
            if kind not in (T.F16, T.BF16):
                self.quantized.add(own + which)

    def block(self, i):
        p, hf = f"blk.{i}.", f"model.layers.{i}."
        q_a, q_b, kv_a, both, o = TYPES[i]
        self.linear(p + "attn_q_a", hf + "self_attn.q_a_proj", q_a, (Q, D))
        self.linear(p + "attn_q_b", hf + "self_attn.q_b_proj", q_b, (H * (N + R), Q))
        self.linear(p + "attn_kv_a_mqa", hf + "self_attn.kv_a_proj_with_mqa", kv_a, (C + R, D))
        self.heads(i, both)
        self.linear(p + "attn_output", hf + "self_attn.o_proj", o, (D, H * W))
        for name, own, length in NORMS + (NEXTN if i == 2 else []):
            self.vector(p + name, hf + own + ".weight", length)
        for name, own, kind, shape in FEED_FORWARD[i]:
            if len(shape) == 2:
                self.linear(p + name, hf + own, kind, shape)
                continue
            for e, w in enumerate(self.matrix(p + name, kind, shape)):
                self.w[f"{hf}mlp.experts.{e}.{own}.weight"] = w
                self.quantized.add(f"{hf}mlp.experts.{e}.{own}.weight")
        if i:
            self.vector(p + "exp_probs_b", hf + "mlp.gate.e_score_correction_bias", E, 0.0, ".bias")

    def finish(self):
        f, d = self.file, "deepseek2."
        for key, value in (
                ("vocab_size", V), ("context_length", 256), ("embedding_length", D), ("block_count", 3),
                ("nextn_predict_layers", 1), ("feed_forward_length", DENSE), ("attention.head_count", H),
                ("attention.head_count_kv", 1), ("attention.key_length", C + R), ("attention.value_length", C),
                ("attention.key_length_mla", N + R), ("attention.value_length_mla", W), ("attention.q_lora_rank", Q),
                ("attention.kv_lora_rank", C), ("rope.dimension_count", R), ("leading_dense_block_count", 1),
                ("expert_feed_forward_length", EXPERT), ("expert_count", E), ("expert_used_count", 2),
                ("expert_shared_count", 1), ("expert_group_count", 2), ("expert_group_used_count", 1),
                ("expert_gating_func", 2)):
            f.add_uint32(d + key, value)
        f.add_float32(d + "attention.layer_norm_rms_epsilon", 1e-6)
        f.add_float32(d + "rope.freq_base", 10000.0)
        f.add_float32(d + "expert_weights_scale", 1.5)
        f.add_bool(d + "expert_weights_norm", True)
        f.write_header_to_file()
        f.write_kv_data_to_file()
        f.write_tensors_to_file()
        f.close()


class Quantized(forward.Model):
    """forward.py's model; what meets a quantized matrix is quantized. With a seed every number on its way there is moved by
    up to half an f32 ulp: where one lies between two integers it may come to the other, as in a program that sums in f32."""

    def __init__(self, weights, quantized, seed=None):
        self.start(CONFIG, weights, {})
        self.quantized, self.rng = quantized, None if seed is None else np.random.default_rng(seed)
        self.tie = np.inf                                  # how near a number has come to the middle of two integers

    def moved(self, x):
        return x if self.rng is None else x * (1 + self.rng.uniform(-1, 1, x.shape) * 2.0 ** -24)

    def integers(self, x, name):
        """d q of x, whose length is a multiple of 32, where the matrix of that name is quantized; d is an f32"""
        x = self.moved(x)
        if name not in self.quantized:
            return x
        groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
        m = np.abs(groups).max(axis=-1, keepdims=True)
        d, scaled = m / np.float32(127), groups * (np.float32(127) / m)
        self.tie = min(self.tie, float(np.abs(scaled - np.floor(scaled) - 0.5).min()))
        return (np.rint(scaled).astype(np.float64) * d).reshape(x.shape)

    def linear(self, x, name):
        return self.moved(self.integers(x, name) @ self.w[name].T)

    def keys(self, q_nope, ckv, p):
        return super().keys(self.integers(q_nope, p + "keys"), ckv, p)

    def values(self, share, ckv, p):
        latent = self.integers(share @ ckv, p + "values")
        w = self.w[p + "kv_b_proj.weight"].reshape(H, N + W, C)[:, N:]
        return latent @ w.transpose(0, 2, 1)


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, x in arrays.items():
        header[name] = {"dtype": {"f": "F64", "i": "I64"}[x.dtype.kind], "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def compute(model, tokens):
    """The target, and the module on the text itself: row i takes token i + 1."""
    logits, hidden, _ = model.target(tokens)
    if len(tokens) < 2:
        return {"logits": logits, "hidden": hidden}
    own, own_hidden = model.module(0, tokens[1:], hidden[:-1])
    return {"logits": logits, "hidden": hidden, "module.logits": own, "module.hidden": own_hidden}


def distance(a, b):
    return {name: float(np.abs(a[name] - x).max() / np.abs(x).max()) for name, x in b.items()}


def find_prompt(m, first):
    """Tokens whose rows stay away from ties, one after the other: a number that is quantized to its other neighbour moves all
    that follows by a hundredth, and would say nothing about a program. The first tokens are tried by different prompts."""
    tokens = []
    for _ in range(TOKENS):
        tried = []
        for token in set(range(first, V, PROMPTS)) - set(tokens):
            model = Quantized(m.w, m.quantized)
            compute(model, np.array(tokens + [token]))
            tried.append((min(model.tie, 0.01 * min(route[3] for route in model.routes)), token))
        tokens.append(max(tried)[1])
    return np.array(tokens)


def main():
    m = Maker("golden/gguf/quantized.gguf", 5)
    for name, hf, kind, shape in OUTSIDE:
        m.linear(name, hf, kind, shape)
    m.quantized.discard("model.embed_tokens.weight")
    m.vector("output_norm", "model.norm.weight", D)
    for i in range(3):
        m.block(i)
    m.finish()
    arrays, facts = {}, []
    for prompt in range(PROMPTS):
        tokens = find_prompt(m, prompt)
        exact = Quantized(m.w, m.quantized)
        truth = compute(exact, tokens)
        arrays.update({f"{prompt}.{name}": x for name, x in truth.items()})
        spread = [distance(compute(Quantized(m.w, m.quantized, seed), tokens), truth) for seed in range(RUNS)]
        facts.append({"tokens": tokens.tolist(), "nearest_tie": exact.tie,
                      "smallest_routing_margin": min(route[3] for route in exact.routes),
                      "spread": {name: max(run[name] for run in spread) for name in truth},
                      "without_quantized_activations": distance(compute(Quantized(m.w, set()), tokens), truth)})
    write_safetensors("golden/truth/quantized.safetensors", arrays)
    with open("golden/truth/quantized.json", "w") as f:
        json.dump(facts, f, indent=1)
        f.write("\n")


main()
