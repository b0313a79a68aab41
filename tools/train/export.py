"""Write the trained model in the Hugging Face layout: BF16 weights, F32 correction biases.

    python export.py --work WORKDIR --out ../../golden/tale

--spread multiplies the weights of the norms before the head by lognormal factors and divides what reads them by the same: the
logits stay, and the hidden states before and after a norm differ as much as in large models.

Every file is written beside its name and then renamed, so a reader never sees half a checkpoint. The MTP layers carry
no embed_tokens and no shared_head.head: they use the main model's.
"""
import argparse
import json
import os
import shutil

import torch
from safetensors.torch import save_file

from model import Config, Model
from tokenizer import BOS, BOS_ID, EOS, EOS_ID


def load(work):
    state = torch.load(os.path.join(work, "checkpoint.pt"), map_location="cpu")
    model = Model(Config(**state["config"]))
    model.load_state_dict(state["model"])
    return model.eval(), state


def tensors(model):
    """Hugging Face name -> tensor. Ours differ in three things: no ".weight" on matrices, experts stacked, MTP apart."""
    out, L = {}, model.cfg.num_hidden_layers
    for name, t in model.state_dict().items():
        head, _, tail = name.partition(".")
        if head == "mtp":
            k, _, rest = tail.partition(".")
            rest = "shared_head.norm.weight" if rest == "norm.weight" else rest.removeprefix("layer.")
            name = f"model.layers.{L + int(k)}.{rest}"
        elif head != "lm_head":
            name = "model." + name
        if t.dim() == 3:                                                     # [E, out, in]
            base, _, matrix = name.rpartition(".")
            for e in range(t.shape[0]):
                out[f"{base}.experts.{e}.{matrix}.weight"] = t[e].bfloat16().contiguous()
        elif name.endswith("e_score_correction_bias"):
            out[name.replace("mlp.e_score", "mlp.gate.e_score")] = t.float()
        else:
            out[name if name.endswith(".weight") else name + ".weight"] = t.bfloat16().contiguous()
    return out


def config(cfg):
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "vocab_size": cfg.vocab_size, "hidden_size": cfg.hidden_size, "intermediate_size": cfg.intermediate_size,
        "moe_intermediate_size": cfg.moe_intermediate_size, "num_hidden_layers": cfg.num_hidden_layers,
        "num_nextn_predict_layers": cfg.num_nextn_predict_layers, "num_attention_heads": cfg.num_attention_heads,
        "num_key_value_heads": cfg.num_attention_heads, "q_lora_rank": cfg.q_lora_rank,
        "kv_lora_rank": cfg.kv_lora_rank, "qk_nope_head_dim": cfg.qk_nope_head_dim,
        "qk_rope_head_dim": cfg.qk_rope_head_dim, "v_head_dim": cfg.v_head_dim,
        "n_routed_experts": cfg.n_routed_experts, "n_shared_experts": cfg.n_shared_experts,
        "num_experts_per_tok": cfg.num_experts_per_tok, "n_group": cfg.n_group, "topk_group": cfg.topk_group,
        "first_k_dense_replace": cfg.first_k_dense_replace, "moe_layer_freq": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": cfg.routed_scaling_factor,
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "rms_norm_eps": cfg.rms_norm_eps,
        "rope_theta": cfg.rope_theta, "rope_scaling": None, "max_position_embeddings": cfg.max_position_embeddings,
        "tie_word_embeddings": False, "initializer_range": 0.02, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
        "use_cache": True,
    }


def tokenizer_config(cfg):
    token = lambda s: {"__type": "AddedToken", "content": s, "lstrip": False, "normalized": False, "rstrip": False,
                       "single_word": False}
    return {"add_bos_token": True, "add_eos_token": False, "bos_token": token(BOS), "eos_token": token(EOS),
            "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": cfg.max_position_embeddings,
            "pad_token": token(EOS), "tokenizer_class": "LlamaTokenizerFast", "unk_token": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--spread", type=float, default=0.0, help="lognormal sigma of these factors")
    a = p.parse_args()
    model, state = load(a.work)
    if a.spread:
        model.spread_norms(a.spread, state["arguments"]["seed"])
    os.makedirs(a.out, exist_ok=True)
    new = lambda name: os.path.join(a.out, f".{name}.new")
    texts = {"config.json": config(model.cfg), "tokenizer_config.json": tokenizer_config(model.cfg),
             "generation_config.json": {"_from_model_config": True, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
                                        "do_sample": False}}
    for name, content in texts.items():
        with open(new(name), "w") as f:
            json.dump(content, f, indent=2)
            f.write("\n")
    named = tensors(model)
    save_file(named, new("model.safetensors"), metadata={"format": "pt"})
    names = list(texts) + ["model.safetensors", "tokenizer.json"]
    shutil.copyfile(os.path.join(a.work, "tokenizer.json"), new("tokenizer.json"))
    if os.path.exists(os.path.join(a.work, "curves.csv")):
        shutil.copyfile(os.path.join(a.work, "curves.csv"), new("curves.csv"))
        names.append("curves.csv")
    for name in names:
        os.chmod(new(name), 0o644)
        os.replace(new(name), os.path.join(a.out, name))
    print(f"step {state['step']}, {len(named)} tensors, {sum(t.numel() for t in named.values())} parameters, "
          f"{os.path.getsize(os.path.join(a.out, 'model.safetensors'))} bytes")


if __name__ == "__main__":
    main()
