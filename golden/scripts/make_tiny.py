#!/usr/bin/env python3
"""Write the tiny random checkpoints of golden/tiny/, one for each family, in the Hugging Face layout.

    make_tiny.py [NAME ...] [--out golden/tiny]

Every tensor is drawn from its own generator, seeded by (seed, tensor name): no value depends on the order of
writing. A random model has no next-token structure, so no draft would ever be accepted. "planted" adds some: the row
of the output head for token next(t) gets a multiple of the embedding of t, next being one random cycle through the
vocabulary, and eh_proj of an MTP layer passes the embedding through. Greedy text then often follows the cycle, the
layers are the noise that overrules it, and the MTP modules predict it about as well as the trunk does.

The widths are odd on purpose: few are multiples of 32 or 128, nope, rope and value dims differ.
"""
import argparse
import hashlib
import json
import os
import struct
import zlib

import numpy as np

from indexer import is_shared

COMMON = dict(
    attention_bias=False, attention_dropout=0.0, bos_token_id=0, eos_token_id=1, first_k_dense_replace=1,
    hidden_act="silu", initializer_range=0.02, moe_layer_freq=1, rms_norm_eps=1e-6, rope_theta=10000,
    tie_word_embeddings=False, use_cache=True)
V3 = dict(COMMON, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", topk_method="noaux_tc",
          scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5, torch_dtype="bfloat16")
V2 = dict(COMMON, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", scoring_func="softmax",
          norm_topk_prob=False)


def yarn(factor, original, mscale, beta_fast=32, beta_slow=1):
    return dict(type="yarn", factor=factor, original_max_position_embeddings=original, beta_fast=beta_fast,
                beta_slow=beta_slow, mscale=mscale, mscale_all_dim=mscale)


# "gen" is ours and is not written to config.json:
#   seed, planted (see above), q_gain: sharpness of attention, gate_gain: of routing,
#   out_gain: what o_proj and down_proj add to the residual stream,
#   latent_gain: size of the latents before their norm (small: their epsilon matters),
#   embed_std, bias: mean and deviation of e_score_correction_bias,
#   dtype: "FP8", "BF16" or "F16" (norms and gate then F32), copies: MTP layers repeat embed_tokens and lm_head,
#   shards, untidy: tensors in random order and a header that is not padded to 8 bytes.
SHAPES = {
    "v3": dict(
        V3, hidden_size=64, intermediate_size=192, moe_intermediate_size=16, num_hidden_layers=3,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=48, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=24, n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3, n_group=4,
        topk_group=2, vocab_size=160, max_position_embeddings=1280, num_nextn_predict_layers=1,
        rope_scaling=yarn(40, 32, 1.0),
        quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                 weight_block_size=[128, 128]),
        gen=dict(seed=31, planted=0.75, q_gain=1.5, gate_gain=1.5, out_gain=0.5, bias=(-0.6, 0.2), dtype="FP8",
                 copies=True, untidy=True)),
    "v3-mtp3": dict(
        V3, hidden_size=64, intermediate_size=96, moe_intermediate_size=8, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
        n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, vocab_size=128,
        max_position_embeddings=256, num_nextn_predict_layers=3, rope_scaling=None,
        gen=dict(seed=32, planted=0.6, q_gain=1.5, gate_gain=1.5, out_gain=0.45, bias=(0.0, 0.15), dtype="BF16",
                 shards=3)),
    "v2-lite": dict(
        V2, hidden_size=64, intermediate_size=144, moe_intermediate_size=16, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=56, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=1,
        topk_group=1, topk_method="greedy", routed_scaling_factor=1.0, vocab_size=192, max_position_embeddings=256,
        rope_scaling=yarn(4, 64, 0.707, beta_fast=8), torch_dtype="bfloat16",
        gen=dict(seed=33, planted=0.5, q_gain=1.5, gate_gain=1.5, out_gain=0.7, dtype="BF16")),
    "v2": dict(
        V2, hidden_size=72, intermediate_size=136, moe_intermediate_size=12, num_hidden_layers=3,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=36, kv_lora_rank=40, qk_nope_head_dim=24,
        qk_rope_head_dim=16, v_head_dim=20, n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, n_group=4,
        topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=16.0, vocab_size=144,
        max_position_embeddings=256, rope_theta=100, rope_scaling=yarn(4, 64, 1.0, beta_fast=4),
        torch_dtype="float16",
        gen=dict(seed=34, planted=0.5, q_gain=1.5, gate_gain=1.5, out_gain=0.35, dtype="F16")),
    "moonlight": dict(
        V3, hidden_size=80, intermediate_size=112, moe_intermediate_size=12, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=40, qk_nope_head_dim=24,
        qk_rope_head_dim=8, v_head_dim=28, n_routed_experts=10, n_shared_experts=2, num_experts_per_tok=3, n_group=1,
        topk_group=1, vocab_size=256, max_position_embeddings=256, num_nextn_predict_layers=0, rms_norm_eps=1e-5,
        rope_theta=50000.0, routed_scaling_factor=2.446, tie_word_embeddings=True,
        gen=dict(seed=35, planted=0.0, q_gain=1.5, gate_gain=1.5, out_gain=1.0, embed_std=0.2, bias=(0.0, 0.15),
                 latent_gain=0.05, dtype="BF16")),
    # As the published file: no scoring_func, a list of end tokens, rope_parameters in place of rope_theta and
    # rope_scaling.
    "glm": dict(
        {k: v for k, v in V3.items() if k not in ("scoring_func", "rope_theta", "torch_dtype", "moe_layer_freq")},
        architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", dtype="bfloat16", hidden_size=64,
        intermediate_size=104, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, vocab_size=136,
        max_position_embeddings=512, num_nextn_predict_layers=1, rms_norm_eps=1e-5, routed_scaling_factor=1.8,
        eos_token_id=[1, 2, 3], partial_rotary_factor=1.0,
        rope_parameters=dict(rope_theta=1000000, rope_type="default"),
        gen=dict(seed=36, planted=0.55, q_gain=1.5, gate_gain=1.5, out_gain=0.45, bias=(0.0, 0.15), latent_gain=0.05,
                 dtype="BF16")),
    # With an indexer. FP8 as published: of its matrices only weights_proj is not quantized.
    "v32": dict(
        V3, architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", hidden_size=64, intermediate_size=96,
        moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40,
        kv_lora_rank=128, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, vocab_size=160,
        max_position_embeddings=1280, num_nextn_predict_layers=1, rope_scaling=yarn(40, 32, 1.0), index_topk=16,
        index_n_heads=3, index_head_dim=128,
        quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0",
                                 weight_block_size=[128, 128]),
        gen=dict(seed=38, planted=0.75, q_gain=1.5, gate_gain=1.5, out_gain=0.5, bias=(-0.6, 0.2), dtype="FP8")),
    # GLM-5.2's keys: layers 2 and 3 use the positions of layer 1, later draft steps those of the first
    "glm5": dict(
        {k: v for k, v in V3.items() if k not in ("rope_theta", "torch_dtype", "routed_scaling_factor")},
        architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", dtype="bfloat16", hidden_size=64,
        intermediate_size=88, moe_intermediate_size=8, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=32,
        n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, vocab_size=136,
        max_position_embeddings=512, num_nextn_predict_layers=1, rms_norm_eps=1e-5, eos_token_id=[1, 2, 3],
        rope_parameters=dict(rope_theta=8000000, rope_type="default"), index_topk=8, index_n_heads=2,
        index_head_dim=128, index_topk_freq=3, index_skip_topk_offset=2, index_share_for_mtp_iteration=True,
        gen=dict(seed=39, planted=0.7, q_gain=1.5, gate_gain=1.5, out_gain=0.45, bias=(0.0, 0.15), latent_gain=0.05,
                 dtype="BF16")),
    # The shape of GigaChat3-10B-A1.8B: V3 without q_lora and groups, with one MTP layer that has its own copies.
    "gigachat": dict(
        V3, hidden_size=72, intermediate_size=120, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=32,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, vocab_size=128,
        max_position_embeddings=512, num_nextn_predict_layers=1, rope_theta=100000, bos_token_id=1, eos_token_id=2,
        gen=dict(seed=43, planted=0.6, q_gain=1.5, gate_gain=1.5, out_gain=0.45, bias=(0.0, 0.15), dtype="BF16", copies=True)),
    # No experts.
    "youtu": dict(
        {k: v for k, v in COMMON.items() if k not in ("rope_theta", "moe_layer_freq", "first_k_dense_replace",
                                                      "tie_word_embeddings")},
        architectures=["YoutuForCausalLM"], model_type="youtu", dtype="bfloat16", hidden_size=64, intermediate_size=104,
        num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=40, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, vocab_size=144, max_position_embeddings=256,
        rope_parameters=dict(rope_theta=1600000, rope_type="default"),
        gen=dict(seed=44, planted=0.0, q_gain=1.5, gate_gain=1.5, out_gain=0.8, embed_std=0.2, dtype="BF16")),
    # No MTP layer, no dense layer, queries scaled from position 24 on, a scale of the router that is not 1.
    "mistral4": dict(
        {k: v for k, v in COMMON.items() if k not in ("rope_theta", "moe_layer_freq")},
        architectures=["Mistral4ForCausalLM"], model_type="mistral4", dtype="bfloat16", bos_token_id=1, eos_token_id=2,
        norm_topk_prob=True, routed_scaling_factor=1.5, first_k_dense_replace=0, hidden_size=64, intermediate_size=96,
        moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=36,
        kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, n_group=4, topk_group=2, vocab_size=150, max_position_embeddings=1536,
        rope_parameters=dict(type="yarn", rope_theta=10000.0, factor=64.0, original_max_position_embeddings=24,
                             max_position_embeddings=1536, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                             llama_4_scaling_beta=0.1, partial_rotary_factor=0.25),
        gen=dict(seed=38, planted=0.4, q_gain=1.5, gate_gain=1.5, out_gain=0.6, dtype="BF16")),
}


# -- numbers --------------------------------------------------------------------------------------

def bf16_bits(x):
    """float32 -> bfloat16 bit patterns, round to nearest even"""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3_magnitudes():
    """the 127 finite magnitudes of F8_E4M3 (codes 0x00..0x7E), ascending: 3 mantissa bits, bias 7, no infinity"""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def e4m3_codes(x):
    """float -> nearest F8_E4M3 code, ties to the even code, saturating"""
    magnitude = e4m3_magnitudes()
    a = np.minimum(np.abs(x), magnitude[-1])
    above = np.clip(np.searchsorted(magnitude, a), 1, 126)
    low, high = a - magnitude[above - 1], magnitude[above] - a
    code = np.where((high < low) | ((high == low) & (above % 2 == 0)), above, above - 1)
    return (code | (np.signbit(x).astype(int) << 7)).astype(np.uint8)


def quantize_blocks(w, block=128):
    """[out,in] -> codes, and one F32 scale for each block of 128x128, blocks at the edges being partial"""
    rows, cols = -(-w.shape[0] // block), -(-w.shape[1] // block)
    codes, scales = np.empty(w.shape, np.uint8), np.empty((rows, cols), np.float32)
    for i in range(rows):
        for j in range(cols):
            at = np.s_[i * block:(i + 1) * block, j * block:(j + 1) * block]
            scales[i, j] = np.abs(w[at]).max() / np.float32(448)
            codes[at] = e4m3_codes(w[at] / scales[i, j])
    return codes, scales


# -- names, shapes, values ------------------------------------------------------------------------

class Weights:
    def __init__(self, cfg):
        self.c, self.gen = cfg, cfg["gen"]
        self.layers, self.mtp = cfg["num_hidden_layers"], cfg.get("num_nextn_predict_layers", 0)

    def layer(self, i):
        """(suffix, shape) of every tensor of decoder layer i; i >= num_hidden_layers are the MTP modules"""
        c, d, heads = self.c, self.c["hidden_size"], self.c["num_attention_heads"]
        q, ckv, n, r, v = (c["q_lora_rank"], c["kv_lora_rank"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                           c["v_head_dim"])
        t = [("input_layernorm.weight", (d,)), ("post_attention_layernorm.weight", (d,))]
        if i >= self.layers:
            t += [("enorm.weight", (d,)), ("hnorm.weight", (d,)), ("eh_proj.weight", (d, 2 * d)),
                  ("shared_head.norm.weight", (d,))]
            if self.gen.get("copies"):
                t += [("embed_tokens.weight", (c["vocab_size"], d)), ("shared_head.head.weight", (c["vocab_size"], d))]
        if q:
            t += [("self_attn.q_a_proj.weight", (q, d)), ("self_attn.q_a_layernorm.weight", (q,)),
                  ("self_attn.q_b_proj.weight", (heads * (n + r), q))]
        else:
            t += [("self_attn.q_proj.weight", (heads * (n + r), d))]
        t += [("self_attn.kv_a_proj_with_mqa.weight", (ckv + r, d)), ("self_attn.kv_a_layernorm.weight", (ckv,)),
              ("self_attn.kv_b_proj.weight", (heads * (n + v), ckv)), ("self_attn.o_proj.weight", (d, heads * v))]
        if "index_topk" in c and not is_shared(c, i):
            size, p = c["index_head_dim"], "self_attn.indexer."
            t += [(p + "wq_b.weight", (c["index_n_heads"] * size, q)), (p + "wk.weight", (size, d)),
                  (p + "k_norm.weight", (size,)), (p + "k_norm.bias", (size,)),
                  (p + "weights_proj.weight", (c["index_n_heads"], d))]
        if i < c.get("first_k_dense_replace", self.layers):
            return t + self.mlp("mlp", c["intermediate_size"])
        t += [("mlp.gate.weight", (c["n_routed_experts"], d))]
        if c.get("topk_method") == "noaux_tc":
            t += [("mlp.gate.e_score_correction_bias", (c["n_routed_experts"],))]
        for e in range(c["n_routed_experts"]):
            t += self.mlp(f"mlp.experts.{e}", c["moe_intermediate_size"])
        return t + self.mlp("mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])

    def mlp(self, prefix, inter):
        d = self.c["hidden_size"]
        return [(f"{prefix}.gate_proj.weight", (inter, d)), (f"{prefix}.up_proj.weight", (inter, d)),
                (f"{prefix}.down_proj.weight", (d, inter))]

    def tensors(self):
        c = self.c
        yield "model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"])
        for i in range(self.layers + self.mtp):
            for suffix, shape in self.layer(i):
                yield f"model.layers.{i}.{suffix}", shape
        yield "model.norm.weight", (c["hidden_size"],)
        if not c.get("tie_word_embeddings", c["model_type"] == "youtu"):
            yield "lm_head.weight", (c["vocab_size"], c["hidden_size"])

    def rng(self, name):
        return np.random.default_rng([self.gen["seed"], zlib.crc32(name.encode())])

    def successor(self):
        """next(t): one cycle through the whole vocabulary"""
        order = self.rng("successor").permutation(self.c["vocab_size"])
        following = np.empty_like(order)
        following[order] = np.roll(order, -1)
        return following

    def value(self, name, shape):
        """the values of one tensor before rounding to its dtype"""
        gen = self.gen
        if name.endswith(".shared_head.head.weight"):        # the copies of an MTP layer repeat the main ones
            name = "lm_head.weight"
        elif name.endswith(".embed_tokens.weight"):
            name = "model.embed_tokens.weight"
        w = self.rng(name).standard_normal(shape)
        if "norm.weight" in name:
            return 1 + 0.2 * w
        if name.endswith("k_norm.bias"):
            return 0.2 * w
        if name.endswith("embed_tokens.weight"):
            return w * gen.get("embed_std", 1.0)
        if name.endswith("e_score_correction_bias"):
            mean, deviation = gen["bias"]
            return mean + deviation * w
        w /= np.sqrt(shape[-1])
        if name.endswith(("q_b_proj.weight", "q_proj.weight")):
            w *= gen["q_gain"]
        elif name.endswith("q_a_proj.weight"):
            w *= gen.get("latent_gain", 1.0)
        elif name.endswith("kv_a_proj_with_mqa.weight"):
            w[:self.c["kv_lora_rank"]] *= gen.get("latent_gain", 1.0)
        elif name.endswith("mlp.gate.weight"):
            w *= gen["gate_gain"]
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            w *= gen["out_gain"]
        elif name == "lm_head.weight" and gen["planted"]:
            embed = self.value("model.embed_tokens.weight", shape)
            w[self.successor()] += gen["planted"] / np.sqrt(shape[1]) * embed
        elif name.endswith("eh_proj.weight"):
            w *= 0.5
            w[:, :shape[0]] += np.eye(shape[0])
        return w

    def dtype(self, name):
        kind = self.gen["dtype"]
        if name.endswith("e_score_correction_bias"):
            return "F32"
        if kind == "F16":
            return "F32" if "norm" in name or name.endswith("mlp.gate.weight") else "F16"
        if kind == "FP8" and name.endswith(("wq_b.weight", "wk.weight")):
            return "F8_E4M3"
        quantized = (".self_attn." in name or ".mlp." in name) and not name.endswith("weights_proj.weight")
        if kind == "FP8" and quantized and name.endswith("_proj.weight") or "proj_with_mqa" in name and kind == "FP8":
            return "F8_E4M3"
        return "BF16"

    def stored(self):
        """yields (name, dtype, array of the stored bits)"""
        for name, shape in self.tensors():
            w, dtype = self.value(name, shape).astype(np.float32), self.dtype(name)
            if dtype == "F8_E4M3":
                codes, scales = quantize_blocks(w)
                yield name, dtype, codes
                yield name + "_scale_inv", "F32", scales
            else:
                yield name, dtype, bf16_bits(w) if dtype == "BF16" else w.astype({"F16": "<f2", "F32": "<f4"}[dtype])


# -- files ----------------------------------------------------------------------------------------

def write_safetensors(path, tensors, metadata, padded=True):
    """tensors: [(name, dtype, array)]. padded: the JSON header is filled up with spaces to a multiple of 8 bytes."""
    header, offset = {"__metadata__": metadata}, 0
    for name, dtype, array in tensors:
        header[name] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[offset, offset + array.nbytes])
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    if padded:
        text += b" " * (-len(text) % 8)
    elif len(text) % 8 == 0:
        text += b" "
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, array in tensors:
            f.write(np.ascontiguousarray(array).tobytes())


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_checkpoint(cfg, path):
    os.makedirs(path, exist_ok=True)
    gen, w = cfg["gen"], Weights(cfg)
    tensors = list(w.stored())
    if gen.get("untidy"):
        tensors = [tensors[i] for i in w.rng("order").permutation(len(tensors))]
    shards = gen.get("shards", 1)
    parts, per = [], -(-len(tensors) // shards)
    for k in range(shards):
        part = tensors[k * per:(k + 1) * per]
        file = "model.safetensors" if shards == 1 else f"model-{k + 1:05d}-of-{shards:06d}.safetensors"
        # a sharded checkpoint: the second file is padded, the others are not
        write_safetensors(os.path.join(path, file), part, {"format": "pt"},
                          padded=not gen.get("untidy") and (shards == 1 or k == 1))
        parts.append((file, part))
    if shards > 1:
        total = sum(a.nbytes for _, _, a in tensors)
        write_json(os.path.join(path, "model.safetensors.index.json"),
                   dict(metadata=dict(total_size=total),
                        weight_map={name: file for file, part in parts for name, _, _ in part}))
    write_json(os.path.join(path, "config.json"), {k: v for k, v in sorted(cfg.items()) if k != "gen"})
    return sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))


def write_sums(out):
    """SHA256SUMS: that another NumPy draws the same numbers is likely, not promised (sha256sum -c SHA256SUMS)"""
    with open(os.path.join(out, "SHA256SUMS"), "w", encoding="utf-8") as sums:
        for name in SHAPES:
            for file in sorted(os.listdir(os.path.join(out, name))):
                with open(os.path.join(out, name, file), "rb") as f:
                    sums.write(f"{hashlib.sha256(f.read()).hexdigest()}  {name}/{file}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; none: all")
    p.add_argument("--out", default=os.path.join(here, "..", "tiny"))
    a = p.parse_args()
    for name in a.names or SHAPES:
        size = write_checkpoint(SHAPES[name], os.path.join(a.out, name))
        print(f"{name}: {size / 1000:.0f} kB")
    if not a.names:
        write_sums(a.out)


if __name__ == "__main__":
    main()
