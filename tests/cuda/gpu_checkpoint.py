#!/usr/bin/env python3
"""Writes a checkpoint with random weights, to measure speed: gpu_checkpoint.py DIR tiny|mid|lite [fp8]

tiny: to try the measurements. mid: 1.3 billion parameters in the shape of DeepSeek-V3. lite: the shape of DeepSeek-V2-Lite, with an MTP module. The weights are BF16, or with fp8
in the layout of DeepSeek-V3: E4M3 with a scale for each 128 x 128.

All tensors are pieces of the same few million random numbers, each from another place on, so that even a large checkpoint is written quickly.
"""
import json
import pathlib
import random
import struct
import sys

V3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
      "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
      "max_position_embeddings": 32768, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False, "moe_layer_freq": 1, "torch_dtype": "bfloat16"}
SHAPES = {
    "tiny": {"max_position_embeddings": 96, "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
             "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "mid": {"vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 4096, "moe_intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 16,
            "q_lora_rank": 512, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
            "n_shared_experts": 1, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4},
    "lite": {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
             "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
             "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
}
SMALL = bytes(0x3C if b < 128 else 0xBC for b in range(256))  # the upper byte of a BF16 number of about 0.01, with either sign
FINITE = bytes(b if b & 0x7F < 0x70 else b & 0x8F for b in range(256))  # E4M3 numbers below 128
SCALE = struct.pack("<f", 2.0 ** -12)
ONE = b"\x80\x3f"  # 1 as BF16
NUMBERS = 1 << 23


def tensors(c):
    """(name, shape, kind) of each tensor; kind is None for random numbers."""
    d, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value, rank = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]

    def mlp(prefix, width):
        for part, shape in [("gate_proj", (width, d)), ("up_proj", (width, d)), ("down_proj", (d, width))]:
            yield f"{prefix}.{part}.weight", shape, None

    yield "model.embed_tokens.weight", (c["vocab_size"], d), None
    yield "lm_head.weight", (c["vocab_size"], d), None
    yield "model.norm.weight", (d,), ONE
    for i in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        p = f"model.layers.{i}"
        yield f"{p}.input_layernorm.weight", (d,), ONE
        yield f"{p}.post_attention_layernorm.weight", (d,), ONE
        if rank:
            yield f"{p}.self_attn.q_a_proj.weight", (rank, d), None
            yield f"{p}.self_attn.q_a_layernorm.weight", (rank,), ONE
        yield f"{p}.self_attn.{'q_b_proj' if rank else 'q_proj'}.weight", (heads * (nope + rope), rank or d), None
        yield f"{p}.self_attn.kv_a_proj_with_mqa.weight", (latent + rope, d), None
        yield f"{p}.self_attn.kv_a_layernorm.weight", (latent,), ONE
        yield f"{p}.self_attn.kv_b_proj.weight", (heads * (nope + value), latent), None
        yield f"{p}.self_attn.o_proj.weight", (d, heads * value), None
        if i < c["first_k_dense_replace"]:
            yield from mlp(f"{p}.mlp", c["intermediate_size"])
        else:
            yield f"{p}.mlp.gate.weight", (c["n_routed_experts"], d), None
            yield f"{p}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), b"\0\0"
            for e in range(c["n_routed_experts"]):
                yield from mlp(f"{p}.mlp.experts.{e}", c["moe_intermediate_size"])
            yield from mlp(f"{p}.mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])
        if i >= c["num_hidden_layers"]:
            for part in ["enorm", "hnorm", "shared_head.norm"]:
                yield f"{p}.{part}.weight", (d,), ONE
            yield f"{p}.eh_proj.weight", (d, 2 * d), None


def is_fp8(name, shape, kind):
    return not kind and len(shape) == 2 and not any(part in name for part in ["embed_tokens", "lm_head", "mlp.gate.", "eh_proj"])


def listed(c, fp8):
    """(name, dtype, shape, kind) of each tensor of the file"""
    for name, shape, kind in tensors(c):
        if fp8 and is_fp8(name, shape, kind):
            yield name, "F8_E4M3", shape, None
            yield f"{name}_scale_inv", "F32", tuple((n + 127) // 128 for n in shape), SCALE
        else:
            yield name, "BF16", shape, kind


def random_pieces():
    """For each dtype, random bytes of its numbers; twice, so that a piece may begin anywhere in the first half."""
    numbers = random.Random(1)
    bf16 = bytearray(2 * NUMBERS)
    bf16[0::2] = numbers.randbytes(NUMBERS)
    bf16[1::2] = numbers.randbytes(NUMBERS).translate(SMALL)
    return {"BF16": memoryview(bytes(bf16) * 2), "F8_E4M3": memoryview(numbers.randbytes(NUMBERS).translate(FINITE) * 2)}


def write_random(file, piece, size, numbers):
    while size:
        at = numbers.randrange(NUMBERS // 64) * 128
        some = min(size, len(piece) // 2)
        file.write(piece[at % (len(piece) // 2):][:some])
        size -= some


def main():
    fp8 = sys.argv[3:] == ["fp8"]
    folder, config = pathlib.Path(sys.argv[1]), {**V3, **SHAPES[sys.argv[2]]}
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    folder.mkdir(parents=True)
    all_tensors, at, header = list(listed(config, fp8)), 0, {}
    for name, dtype, shape, _ in all_tensors:
        size = {"BF16": 2, "F8_E4M3": 1, "F32": 4}[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers, pieces = random.Random(2), random_pieces()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape, kind in all_tensors:
            begin, end = header[name]["data_offsets"]
            if kind:
                file.write(kind * ((end - begin) // len(kind)))
            else:
                write_random(file, pieces[dtype], end - begin, numbers)
    (folder / "config.json").write_text(json.dumps(config))


main()
