#!/usr/bin/env python3
"""test_layouts_mistral.py VERBATIM [TEST]: Mistral's own files, params.json and consolidated.safetensors, give the bits of the same
weights under the usual names."""
import json
import os
import sys
import tempfile

from running import run_tests
from test_layouts import TINY, bf16, config_of, fingerprints, number_of_e4m3, packed_e2m1, read, refused, run, write


MISTRAL = {"model.embed_tokens.": "tok_embeddings.", "model.norm.": "norm.", "lm_head.": "output.", "model.layers.": "layers.",
           "input_layernorm.": "attention_norm.", "post_attention_layernorm.": "ffn_norm.", "self_attn.q_a_proj.": "attention.wq_a.",
           "self_attn.q_a_layernorm.": "attention.q_a_norm.", "self_attn.q_b_proj.": "attention.wq_b.",
           "self_attn.kv_a_proj_with_mqa.": "attention.wkv_a_with_mqa.", "self_attn.kv_a_layernorm.": "attention.kv_a_norm.",
           "self_attn.kv_b_proj.": "attention.wkv_b.", "self_attn.o_proj.": "attention.wo.", "mlp.gate.": "gate.",
           "mlp.shared_experts.": "shared_experts.", "mlp.experts.": "experts.", "mlp.": "feed_forward.", "gate_proj.": "w1.",
           "down_proj.": "w2.", "up_proj.": "w3."}


def mistral_name(name):
    for here, there in MISTRAL.items():
        name = name.replace(here, there)
    return name


def mistral_params(config):
    """params.json for the shape of the tiny checkpoint mistral4"""
    rope = config["rope_parameters"]
    return {"dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "head_dim": 32,
            "hidden_dim": config["intermediate_size"],
            "n_heads": config["num_attention_heads"], "n_kv_heads": 2, "rope_theta": rope["rope_theta"],
            "norm_eps": config["rms_norm_eps"],
            "vocab_size": config["vocab_size"], "tied_embeddings": False, "max_position_embeddings": config["max_position_embeddings"],
            "llama_4_scaling": {"original_max_position_embeddings": 24, "beta": rope["llama_4_scaling_beta"]},
            "q_lora_rank": 36, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "kv_lora_rank": 32, "v_head_dim": 20,
            "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
            "yarn": {"original_max_position_embeddings": 24, "factor": rope["factor"], "apply_scale": False,
                       "beta": rope["beta_fast"], "alpha": rope["beta_slow"]},
            "moe": {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 1,
                      "num_experts": 8, "num_experts_per_tok": 3, "num_expert_groups": 4, "num_expert_groups_per_tok": 2,
                      "routed_scale": config["routed_scaling_factor"], "expert_hidden_dim": 12, "num_shared_experts": 1},
            "vision_encoder": {"image_token_id": 10, "hidden_size": 2}}


def mistrals_own_files():
    """params.json and consolidated.safetensors, with Mistral's keys and names; one layer is dense, and FP8 scales have no dimensions"""
    plain, config = read(TINY + "mistral4"), dict(config_of(TINY + "mistral4"), first_k_dense_replace=1)
    coded, same = {}, {}
    config["rope_parameters"] = dict(config["rope_parameters"], beta_fast=1.0, beta_slow=0.01)  # a ramp of several frequencies
    for name, tensor in plain.items():
        if not name.startswith("model.layers.0.mlp."):
            same[name] = coded[name] = tensor
    for part in ("gate", "up", "down"):
        stem = "model.layers.0.mlp."
        rows = [plain[f"{stem}experts.{e}.{part}_proj.weight"] for e in range(8)]  # 8 experts of 12 are as wide as the dense MLP
        shape = [64, 96] if part == "down" else [96, 64]
        same[f"{stem}{part}_proj.weight"] = coded[f"{stem}{part}_proj.weight"] = ["BF16", shape, b"".join(data for _, _, data in rows)]
    values = [bf16(number_of_e4m3(code) * 2.0 ** -9) for code in range(256)]
    for name, (dtype, shape, data) in list(coded.items()):
        if ".o_proj." in name or "shared_experts" in name or ".experts.1.down" in name:
            codes = bytes((data[i] if data[i] & 0x7f != 0x7f else 3) for i in range(0, len(data), 2))
            coded[name] = ["F8_E4M3", shape, codes]
            same[name] = ["BF16", shape, b"".join(values[c] for c in codes)]
            coded[name.replace(".weight", ".qscale_weight")] = ["BF16", [], bf16(2.0 ** -9)]
            coded[name.replace(".weight", ".qscale_act")] = ["BF16", [], bf16(1.0)]
    native = {mistral_name(name): tensor for name, tensor in coded.items()}
    native["vision_encoder.transformer.layers.0.attention.wq.weight"] = ["BF16", [2, 3], bytes(12)]
    for name in "vision_language_adapter.w_in.weight", "patch_merger.merging_layer.weight", "pre_mm_projector_norm.weight":
        native[name] = ["BF16", [2], bytes(4)]
    params = mistral_params(config)
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
        write(exact, same, config)
        wanted = fingerprints(exact)
        write(path, native, params)
        os.rename(path + "/config.json", path + "/params.json")
        os.rename(path + "/model.safetensors", path + "/consolidated.safetensors")
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"
        ran = run(path, "inspect")
        assert "vision tower" in ran.stdout and "a scale of activations" in ran.stdout, ran.stdout
        ran = run(path, "dump", "--reference", "--tokens", "5,6,7", "-o", path + "/d.safetensors")
        assert ran.returncode == 0, ran.stderr
        os.remove(path + "/d.safetensors")
        with open(path + "/tekken.json", "w", encoding="utf-8") as f:
            f.write("{}")
        ran = run(path, "generate", "--prompt", "a")
        assert ran.returncode != 0 and "tekken.json: there is no config" in ran.stderr, ran.stderr
        os.rename(path + "/consolidated.safetensors", path + "/consolidated-00001-of-00001.safetensors")  # shards
        with open(path + "/consolidated.safetensors.index.json", "w", encoding="utf-8") as f:
            json.dump({"weight_map": {n: "consolidated-00001-of-00001.safetensors" for n in native}}, f)
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"
        for keys, value, sentence in [
                (("dim",), None, "params.json: dim is missing"),
                (("v_head_dim",), None, "params.json: v_head_dim is missing"),
                (("v_head_dim",), 16, "params.json says"),
                (("kv_lora_rank",), None, "params.json: it has no kv_lora_rank or no moe"),
                (("yarn", "alpha"), None, "params.json: yarn.alpha is missing"),
                (("yarn", "gamma"), 1, 'params.json: yarn has a key that is not known: "gamma"'),
                (("moe",), [1], "params.json: moe is [1], wanted an object"),
                (("moe", "expert_hidden_dim"), None, "params.json: moe.expert_hidden_dim is missing"),
                (("moe", "expert_bias"), True, 'params.json: moe has a key that is not known: "expert_bias"'),
                (("llama_4_scaling", "original_max_position_embeddings"), 25, "llama_4_scaling.original_max_position_embeddings is 25"),
                (("quantization", "qformat_weight"), "int8", 'quantization.qformat_weight "int8" is not supported, only fp8_e4m3')]:
            odd = json.loads(json.dumps(params))
            at = odd
            for key in keys[:-1]:
                at = at[key]
            if value is None:
                del at[keys[-1]]
            else:
                at[keys[-1]] = value
            with open(path + "/params.json", "w", encoding="utf-8") as f:
                json.dump(odd, f)
            refused(path, sentence)
        with open(path + "/config.json", "w", encoding="utf-8") as f:  # which is read if both are there
            json.dump(dict(config, quantization_config={"quant_method": "fp8", "weight_block_size": None}), f)
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"


def mistrals_own_files_in_nvfp4():
    """as published for Mistral Small 4: names of Mistral, the quantization_config of compressed-tensors with another group's name,
    and a scale of activations in BF16"""
    coded, same, config, quantization = packed_e2m1("mistral4", "nvfp4")
    assert sum(name.endswith(".weight_packed") for name in coded) > 10
    params = mistral_params(config)
    params["moe"]["first_k_dense_replace"] = config.get("first_k_dense_replace", 0)
    del params["quantization"]
    group = quantization["config_groups"]["group_0"]
    params["quantization_config"] = dict(quantization, config_groups={"NVFP4A16": group})
    native = {}
    for name, tensor in coded.items():
        native[mistral_name(name)] = ["BF16", [1], b"\x80\x3f"] if name.endswith(".input_global_scale") else tensor
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
        write(exact, same, config)
        write(path, native, params)
        os.rename(path + "/config.json", path + "/params.json")
        os.rename(path + "/model.safetensors", path + "/consolidated.safetensors")
        assert fingerprints(path) == fingerprints(exact), "other bits than those of the same numbers in F32"
        other = {"a\u00e9b": dict(group, weights=dict(group["weights"], num_bits=8))}
        for groups, sentence in [({"NVFP4A16": 7}, "is not supported, only an object with one group"), ({"a": group, "b": group}, "is not supported, only an object with one group"),
                                 (other, "quantization_config.config_groups.a??b.weights.num_bits 8 is not supported, only 4")]:
            params["quantization_config"]["config_groups"] = groups
            with open(path + "/params.json", "w", encoding="utf-8") as f:
                json.dump(params, f)
            refused(path, sentence)


if __name__ == "__main__":
    sys.exit(run_tests([mistrals_own_files, mistrals_own_files_in_nvfp4]))
