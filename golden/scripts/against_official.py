#!/usr/bin/env python3
"""The official DeepSeek-V3 inference script as a second witness, in float64, one process, on the CPU.

    against_official.py PATH/TO/DeepSeek-V3/inference [NAME ...] [--commit HASH]
    writes golden/truth/NAME.official.{safetensors,json}

PATH is a checkout of github.com/deepseek-ai/DeepSeek-V3 (or any folder with its model.py), which stays outside this
project. What its code does not allow for is set from here, on the objects it built:
  kernel       its FP8 and Triton kernels are replaced by functions that refuse: the weights come dequantized
  bias         the router's bias exists only for its largest model (dim == 7168): given to every router that has one
  epsilon      1e-6 everywhere: replaced by rms_norm_eps in the norms of the layers and the last one, not the latents'
  YaRN         only when max_seq_len exceeds the original length: max_seq_len is chosen accordingly
  rows         forward() returns the last row only: the others are taken where they leave the last norm
It has no MTP. It always normalises sigmoid scores, and its softmax scale uses mscale, not mscale_all_dim.
Runs "as is" and "widened" as in against_transformers.py, each with both of its attention forms.
"""
import argparse
import contextlib
import hashlib
import importlib
import json
import os
import platform
import sys
import types

import torch
import numpy as np

import make_tiny
import make_truth
from forward import Model, read_config, read_weights

TINY, TRUTH = make_truth.TINY, make_truth.TRUTH
ROWS = 128                                                 # max_seq_len, longer than any golden prompt

NAMES = {                                                  # names of a Hugging Face checkpoint -> the script's
    "embed_tokens": "embed", "lm_head": "head", "self_attn": "attn", "mlp": "ffn",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "q_proj": "wq", "q_a_proj": "wq_a", "q_a_layernorm": "q_norm", "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a", "kv_a_layernorm": "kv_norm", "kv_b_proj": "wkv_b", "o_proj": "wo",
    "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3", "e_score_correction_bias": "bias",
}


class Widened:
    """stands for the name `torch` in the script: float32 is float64"""
    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def widened(script, wanted):
    narrow = torch.Tensor.float
    if wanted:
        script.torch, torch.Tensor.float = Widened(), torch.Tensor.double
    try:
        yield
    finally:
        script.torch, torch.Tensor.float = torch, narrow


def load_script(path):
    def refuse(*_):
        raise RuntimeError("the weights are dequantized: no FP8 kernel should be called")

    kernel = types.ModuleType("kernel")
    kernel.act_quant = kernel.weight_dequant = kernel.fp8_gemm = refuse
    sys.modules["kernel"] = kernel
    sys.path.insert(0, path)
    return importlib.import_module("model")


def arguments(script, c):
    """its ModelArgs for one of our configurations"""
    yarn = c["rope_scaling"]
    rope = dict(original_seq_len=ROWS)
    if yarn:
        assert yarn["mscale"] == yarn["mscale_all_dim"] and yarn["original_max_position_embeddings"] < ROWS
        rope = dict(original_seq_len=yarn["original_max_position_embeddings"], rope_factor=yarn["factor"],
                    beta_fast=yarn["beta_fast"], beta_slow=yarn["beta_slow"], mscale=yarn["mscale"])
    assert c["norm_topk_prob"] == (c["scoring_func"] == "sigmoid")
    return script.ModelArgs(
        max_batch_size=1, max_seq_len=ROWS, dtype="bf16", vocab_size=c["vocab_size"], dim=c["hidden_size"],
        inter_dim=c["intermediate_size"], moe_inter_dim=c["moe_intermediate_size"], n_layers=c["num_hidden_layers"],
        n_dense_layers=c["first_k_dense_replace"], n_heads=c["num_attention_heads"],
        n_routed_experts=c["n_routed_experts"], n_shared_experts=c["n_shared_experts"],
        n_activated_experts=c["num_experts_per_tok"], n_expert_groups=c["n_group"], n_limited_groups=c["topk_group"],
        score_func=c["scoring_func"], route_scale=c["routed_scaling_factor"], q_lora_rank=c["q_lora_rank"] or 0,
        kv_lora_rank=c["kv_lora_rank"], qk_nope_head_dim=c["qk_nope_head_dim"], qk_rope_head_dim=c["qk_rope_head_dim"],
        v_head_dim=c["v_head_dim"], rope_theta=c["rope_theta"], **rope)


def build(script, name):
    path = os.path.join(TINY, name)
    c = read_config(path)
    torch.set_default_dtype(torch.float64)
    model = script.Transformer(arguments(script, c)).double().eval()
    state = {}
    for full, w in read_weights(path, [128, 128]).items():
        parts = full.removeprefix("model.").split(".")
        if parts[0] == "layers" and int(parts[1]) >= c["num_hidden_layers"]:
            continue                                       # an MTP module
        state[".".join(NAMES.get(part, part) for part in parts)] = torch.from_numpy(np.array(w))
    if c["tie_word_embeddings"]:
        state["head.weight"] = state["embed.weight"]
    for layer in model.layers:
        layer.attn_norm.eps = layer.ffn_norm.eps = c["rms_norm_eps"]
        if hasattr(layer.ffn, "gate") and c["topk_method"] == "noaux_tc":
            layer.ffn.gate.bias = torch.nn.Parameter(torch.empty(c["n_routed_experts"], dtype=torch.float64))
    model.norm.eps = c["rms_norm_eps"]
    model.load_state_dict(state, strict=True)
    return model


@torch.no_grad()
def all_rows(model, tokens):
    seen = []
    hook = model.norm.register_forward_hook(lambda _module, _input, output: seen.append(output))
    last = model(torch.tensor([tokens]))
    hook.remove()
    logits = model.head(seen[0][0])
    assert torch.allclose(logits[-1], last[0], rtol=1e-12, atol=1e-12)
    return logits.numpy()


def distance(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare(script, name, about):
    with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    path = os.path.join(TINY, name)
    ours = {a: Model(path, rope_angle=a).target(tokens)[0] for a in ("f64", "f32")}
    told = dict(checkpoint=name, tokens="those of " + name + ".json", measure="max|official - numpy| / max|numpy|",
                logits={})
    for run in ("as is", "widened"):
        for form in ("naive", "absorb"):
            script.attn_impl = form
            with widened(script, run == "widened"), torch.inference_mode():
                theirs = all_rows(build(script, name), tokens)
            told["logits"][f"{run}, {form}"] = {"angles " + a: distance(theirs, ours[a]) for a in ours}
            if (run, form) == ("as is", "absorb"):
                make_truth.write_f64(os.path.join(TRUTH, name + ".official.safetensors"), dict(logits=theirs),
                                     "official script, as is, absorb")
    told.update(about)
    make_truth.write_compact(os.path.join(TRUTH, name + ".official.json"), told)
    print(name, json.dumps(told["logits"], indent=1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("path")
    p.add_argument("names", nargs="*", help=f"of {', '.join(make_tiny.SHAPES)}; none: all")
    p.add_argument("--commit", help="the revision of the checkout, recorded with the numbers")
    a = p.parse_args()
    torch.set_num_threads(1)
    script = load_script(a.path)
    with open(os.path.join(a.path, "model.py"), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    about = dict(script="deepseek-ai/DeepSeek-V3 inference/model.py", commit=a.commit, sha256=digest,
                 versions=dict(torch=torch.__version__, numpy=np.__version__, python=platform.python_version()))
    for name in a.names or make_tiny.SHAPES:
        compare(script, name, about)


if __name__ == "__main__":
    main()
