#!/usr/bin/env python3
"""Write golden/truth/eagle3-norms.safetensors: what the code of vllm-project/speculators computes with the EAGLE-3 head
golden/eagle/eagle3-v3, if its config.json asks for other norms.

    make_eagle_norms.py SPECULATORS        SPECULATORS: a copy of that repository (commit c05b95b)

VARIANTS has the keys of config.json. The norms that the head does not have are made here and in the test, as WEIGHTS says. Row i takes token i
and a random feature, as in make_eagle.py; and the head goes on alone from the last row, greedily. The code computes all drafts
of a text at once: step k of row i is the draft that row i makes after k drafts if the text goes on as it drafts. So the text is
made draft by draft, and the last row's steps are taken. It takes norms and angles in float32, so its numbers are good to some 1e-6.
Needs torch, transformers, pydantic, safetensors.
"""
import json
import os
import sys
from importlib import metadata
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HEAD = os.path.join(GOLDEN, "eagle", "eagle3-v3")
N, STEPS = 12, 4
VARIANTS = {"residual": ["norm_before_residual"], "before_fc": ["norm_before_residual", "norm_before_fc", "norm_output"],
            "fc_norm": ["fc_norm", "norm_output"]}
WEIGHTS = 1 + ((29 * torch.arange(3 * 64)) % 61 - 30) / 128  # of input_norm, or of the three of fc_norm one after the other


def import_speculators(folder):
    """The package imports what its training needs, too. What is not installed of this is left out."""
    sys.path.insert(0, os.path.join(folder, "src"))
    version = metadata.version
    metadata.version = lambda name: "0" if name == "speculators" else version(name)
    while True:
        try:
            import speculators
            return speculators
        except ModuleNotFoundError as e:
            assert not e.name.startswith("speculators"), e
            sys.modules[e.name] = mock.MagicMock(__spec__=None, __path__=[])
            for name in [n for n in sys.modules if n.startswith("speculators")]:
                del sys.modules[name]


def make_head(speculators, config, keys):
    from transformers import LlamaConfig

    layer = LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "model_type", "draft_vocab_size")},
                        head_dim=config["hidden_size"] // config["num_attention_heads"])
    layer._attn_implementation = "sdpa"  # "eager" lets rows of later steps see those of other rows: it adds a mask of 0 and 1 to scores
    model = speculators.Eagle3DraftModel(speculators.Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=config["draft_vocab_size"], **{key: True for key in keys}))
    weights = {n.replace("midlayer.", "layers.0."): w for n, w in load_file(os.path.join(HEAD, "model.safetensors")).items()}
    if "norm_before_fc" in keys:
        weights["input_norm.weight"] = WEIGHTS
    if "fc_norm" in keys:
        weights.update({f"fc_norm.{i}.weight": w for i, w in enumerate(WEIGHTS.chunk(3))})
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and all(name.startswith("verifier_") for name in missing), (missing, unknown)
    return model.double().eval()


def run(model, features, tokens):
    """what each step hands on, and its logits: [steps][rows]"""
    handed, logits = [], []
    hooks = [model.lm_head.register_forward_hook(lambda _, args, z: logits.append(z[0].clone()))]
    kept = model.norm if model.config.norm_output else model.layers[0]
    hooks.append(kept.register_forward_hook(lambda _, args, y: handed.append(y[0].clone())))
    with torch.no_grad():
        model(features[None], tokens[None], torch.zeros(1, len(tokens), dtype=torch.long), ttt_steps=STEPS + 1)
    for hook in hooks:
        hook.remove()
    return handed, logits


def truth(model, features, tokens):
    features = torch.cat((features, torch.zeros(STEPS, features.shape[1]))).double()
    text = torch.cat((tokens, torch.zeros(STEPS, dtype=torch.long)))
    for step in range(STEPS):
        best = run(model, features, text)[1][step][N - 1].argmax()
        text[N + step] = best + model.d2t[best]
    handed, logits = run(model, features, text)
    after = [z[N - 1:N] for z in logits[1:]]
    return {"chosen": text[N:].int(), "hidden": handed[0][:N].float(), "logits": torch.cat((logits[0][:N], *after)).float()}


def main():
    speculators = import_speculators(sys.argv[1])
    torch.set_num_threads(1)
    with open(os.path.join(HEAD, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    generator = torch.Generator().manual_seed(31)
    scale = torch.tensor([0.5, 2, 8]).repeat_interleave(64)  # later layers have larger rows
    features = torch.randn(N, 192, generator=generator) * scale
    tokens = torch.randint(config["vocab_size"], (N,), generator=generator)
    out = {"features": features, "tokens": tokens.int()}
    for name, keys in VARIANTS.items():
        out.update({f"{name}.{what}": x for what, x in truth(make_head(speculators, config, keys), features, tokens).items()})
    save_file(out, os.path.join(GOLDEN, "truth", "eagle3-norms.safetensors"))


if __name__ == "__main__":
    main()
