#!/usr/bin/env python3
"""Write golden/heads/parallel-v3/: three parallel heads (Gloeckle et al. 2024, arXiv 2404.19737) for golden/tiny/v3; and
golden/truth/heads.safetensors: what transformers' decoder layers compute with them, in float64.

    make_heads.py [--keep]     --keep: the heads stay as they are, only the truth is made again

The target and its heads run through the classes of transformers ("widened", see against_transformers.py). Head k reads the rows
before the target's last layer; its layer is one of DeepseekV3's, and then come the target's norm and output head. The layers differ
from the target's in every size that may differ; the first is dense, the others have experts. Random heads would never agree with the
target. So the heads are trained for some time to predict what the target decodes greedily, and rounded to BF16.
Another version of torch may train other heads; the truth then belongs to these. Needs torch, transformers.
"""
import argparse
import json
import os

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Model

import make_tiny
import make_truth
from against_transformers import Witness, widened
from forward import read_weights

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FOLDER = os.path.join(GOLDEN, "heads", "parallel-v3")
N, STEPS, SEQUENCES, LENGTH, BATCH = 4, 1200, 256, 36, 16
V3 = make_tiny.SHAPES["v3"]
L = V3["num_hidden_layers"]
CONFIG = dict(make_tiny.V3, n_future_tokens=N, num_hidden_layers=L, first_k_dense_replace=L + 1, hidden_size=V3["hidden_size"],
              vocab_size=V3["vocab_size"], max_position_embeddings=V3["max_position_embeddings"], intermediate_size=96,
              moe_intermediate_size=8, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=32,
              qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
              n_group=1, topk_group=1, num_nextn_predict_layers=0, rope_scaling=None)


class Heads(torch.nn.Module):
    """decoder layers side by side: layer k of a DeepseekV3Model, but all of them read z"""

    def __init__(self, target):
        super().__init__()
        own = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type", "torch_dtype", "n_future_tokens")}
        own.update(num_hidden_layers=N - 1, first_k_dense_replace=CONFIG["first_k_dense_replace"] - L)
        config = AutoConfig.for_model("deepseek_v3", **own)
        config._experts_implementation, config._attn_implementation = "eager", "eager"
        model = DeepseekV3Model(config).double()
        self.layers, self.rotary, self.target = model.layers, [model.rotary_emb], [target]

    def forward(self, z, k):
        """rows [B,S,d] of the trunk -> logits [B,S,V] of head k"""
        S = z.shape[1]
        mask = torch.full((S, S), -torch.inf, dtype=z.dtype).triu(1)[None, None]
        positions = torch.arange(S)[None]
        y = self.layers[k](z, attention_mask=mask, position_ids=positions, position_embeddings=self.rotary[0](z, positions))
        target = self.target[0]
        return target.lm_head(target.model.norm(y))


@torch.no_grad()
def trunk(target, tokens):
    """the residual stream [B,S,d] before the last layer, and after it, and the target's logits"""
    seen = {}
    last = target.model.layers[-1]
    hooks = [last.register_forward_pre_hook(lambda m, args, kwargs: seen.update(before=args[0] if args else kwargs["hidden_states"]),
                                            with_kwargs=True),
             last.register_forward_hook(lambda m, i, out: seen.update(after=out[0] if isinstance(out, tuple) else out))]
    logits = target(input_ids=tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return seen["before"], seen["after"], logits


def greedy(target, generator):
    tokens = torch.randint(2, V3["vocab_size"], (SEQUENCES, 2), generator=generator)
    while tokens.shape[1] < LENGTH:
        tokens = torch.cat([tokens, trunk(target, tokens)[2][:, -1:].argmax(-1)], dim=1)
    return tokens


def trained(heads, target):
    generator = torch.Generator().manual_seed(70)
    for name, w in heads.named_parameters():
        with torch.no_grad():
            w.copy_(torch.ones_like(w) if "norm" in name else torch.randn(w.shape, generator=generator) * w.shape[-1] ** -0.5)
    with torch.no_grad():
        for name, w in heads.named_buffers():
            if name.endswith("e_score_correction_bias"):
                w.copy_(0.2 * torch.randn(w.shape, generator=generator))
    tokens = greedy(target, generator)
    rows = trunk(target, tokens)[0]
    step = torch.optim.Adam([w for n, w in heads.named_parameters() if "bias" not in n], lr=4e-3)
    for i in range(STEPS):
        some = torch.randint(SEQUENCES, (BATCH,), generator=generator)
        z, said = rows[some], tokens[some]
        loss = sum(torch.nn.functional.cross_entropy(heads(z[:, :-k - 2], k).flatten(0, 1), said[:, k + 2:].flatten()) for k in range(N - 1))
        step.zero_grad()
        loss.backward()
        step.step()
        if i % 200 == 199:
            print("step", i + 1, "loss", loss.item())


def checkpoint_names(heads):
    """name in the folder -> tensor of the class [a view]; the class keeps the experts of a layer in two tensors"""
    for k, layer in enumerate(heads.layers):
        prefix = f"extra_heads.{k}."
        for name, w in layer.state_dict().items():
            if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
                stem = prefix + name.rsplit(".", 1)[0]
                for e in range(w.shape[0]):
                    if name.endswith("down_proj"):
                        yield f"{stem}.{e}.down_proj.weight", w[e]
                    else:
                        yield f"{stem}.{e}.gate_proj.weight", w[e, :w.shape[1] // 2]
                        yield f"{stem}.{e}.up_proj.weight", w[e, w.shape[1] // 2:]
            else:
                yield prefix + name, w


@torch.no_grad()
def write(heads):
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG, f, indent=1)
        f.write("\n")
    tensors = []
    for name, w in checkpoint_names(heads):
        if name.endswith("e_score_correction_bias"):
            tensors.append((name, "F32", w.numpy().astype(np.float32)))
        else:
            tensors.append((name, "BF16", w.to(torch.bfloat16).view(torch.int16).numpy()))
    make_tiny.write_safetensors(os.path.join(FOLDER, "model.safetensors"), tensors, {"format": "pt"})


def read(heads):
    stored = read_weights(FOLDER, None)
    with torch.no_grad():
        for name, w in checkpoint_names(heads):
            w.copy_(torch.from_numpy(np.array(stored.pop(name), dtype=np.float64)))
    assert not stored, stored.keys()


@torch.no_grad()
def truth(heads, target):
    """tokens [n] of the target's own truth; logits [2, N-1, n, V]: heads that read the rows before the last layer, and after it"""
    with open(os.path.join(make_truth.TRUTH, "v3.json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    before, after, _ = trunk(target, torch.tensor([tokens]))
    logits = torch.stack([torch.stack([heads(z, k)[0] for k in range(N - 1)]) for z in (before, after)])
    make_truth.write_f64(os.path.join(make_truth.TRUTH, "heads.safetensors"),
                         {"tokens": np.array(tokens, np.int64), "logits": logits[:, :, -12:].numpy()}, "transformers, widened")
    said = torch.tensor(tokens)
    for k in range(N - 1):
        print(f"head {k}: {int((logits[0, k, :-k - 2].argmax(-1) == said[k + 2:]).sum())} of {len(tokens) - k - 2} tokens")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--keep", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with widened(True):
        target = Witness("v3").model
        heads = Heads(target)
        for w in target.parameters():
            w.requires_grad_(False)
        if not a.keep:
            trained(heads, target)
            write(heads)
        read(heads)
        truth(heads, target)


main()
