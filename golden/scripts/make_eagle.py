#!/usr/bin/env python3
"""Write golden/eagle/: random EAGLE-1 and EAGLE-3 heads for golden/tiny/v3, under the names that published heads have; and
golden/truth/eagle1.safetensors, eagle3.safetensors: what the official code (SafeAILab/EAGLE, eagle/model/cnets1.py, cnets.py)
computes with them.

    make_eagle.py EAGLE        EAGLE: a copy of that repository (commit cb7e084)

Rows i = 0..N-1 take the token i + 1 and a random feature; then the head goes on alone, greedily, from its own rows; and the official
code makes a tree of drafts after the same rows. It takes norms and softmax in float32 and angles too, so its numbers are good to some 1e-6. Needs torch, safetensors, transformers.
"""
import json
import os
import sys
import types

import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..")
N, STEPS = 12, 4
TREE = 4, 4, 24  # topk, levels, nodes

CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", hidden_size=64, intermediate_size=96,
              num_attention_heads=4, num_hidden_layers=1, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0,
              max_position_embeddings=512, vocab_size=160, pad_token_id=0, tie_word_embeddings=False, pretraining_tp=1)
HEADS = {1: dict(CONFIG, num_key_value_heads=4, bias=True), 3: dict(CONFIG, num_key_value_heads=2, draft_vocab_size=96)}


def random_weights(version, config, generator):
    d, i, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    D, width, layer = d // heads, d if version == 1 else 2 * d, "layers.0." if version == 1 else "midlayer."

    def matrix(rows, columns):
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(torch.bfloat16)

    def norm():
        return (1 + 0.2 * torch.randn(d, generator=generator)).to(torch.bfloat16)

    w = {"embed_tokens.weight": (torch.randn(V, d, generator=generator)).to(torch.bfloat16),
         "fc.weight": matrix(d, 2 * d if version == 1 else 3 * d),
         layer + "self_attn.q_proj.weight": matrix(heads * D, width), layer + "self_attn.k_proj.weight": matrix(groups * D, width),
         layer + "self_attn.v_proj.weight": matrix(groups * D, width), layer + "self_attn.o_proj.weight": matrix(d, heads * D),
         layer + "mlp.gate_proj.weight": matrix(i, d), layer + "mlp.up_proj.weight": matrix(i, d),
         layer + "mlp.down_proj.weight": matrix(d, i), layer + "post_attention_layernorm.weight": norm()}
    if version == 1:
        w["fc.bias"] = (0.3 * torch.randn(d, generator=generator)).to(torch.float16)
        return w
    drafted = torch.randperm(V, generator=generator)[: config["draft_vocab_size"]].sort().values
    w.update({layer + "input_layernorm.weight": norm(), layer + "hidden_norm.weight": norm(), "norm.weight": norm(),
              "lm_head.weight": matrix(config["draft_vocab_size"], d), "d2t": drafted - torch.arange(len(drafted)),
              "t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, drafted, True)})
    return w


def official(version, config, weights, generator):
    import eagle.model.cnets
    import eagle.model.cnets1

    torch.set_default_dtype(torch.float64)
    module = eagle.model.cnets1 if version == 1 else eagle.model.cnets
    model = module.Model(types.SimpleNamespace(**config), bias=True)
    missing, unknown = model.load_state_dict({name: w.double() if w.is_floating_point() else w for name, w in weights.items()}, strict=False)
    assert not unknown and not missing, (missing, unknown)
    model.double().eval().init_tree()
    model.reset()
    model.gradient_checkpointing = False
    target_head = load_file(os.path.join(GOLDEN, "tiny", "v3", "model.safetensors"))["lm_head.weight"].double()
    head = (lambda y: y @ target_head.T) if version == 1 else (lambda y: model.lm_head(model.norm(y)))
    features = torch.randn(1, N, config["hidden_size"] * (1 if version == 1 else 3), generator=generator, dtype=torch.float64).float().double()
    tokens = torch.randint(config["vocab_size"], (1, N), generator=generator)
    with torch.no_grad():
        hidden, cache = model(features, input_ids=tokens, use_cache=True)
        logits, last = [head(hidden)], hidden[:, -1:]
        chosen = []
        for step in range(STEPS):
            token = logits[-1][:, -1].argmax(-1)
            token = token if version == 1 else token + model.d2t[token]
            chosen.append(token)
            last, cache = model(last, input_ids=token[None], past_key_values=cache, use_cache=True,
                                position_ids=torch.tensor([[N + step]]))
            logits.append(head(last))
    truth = {"features": features[0].float(), "tokens": tokens[0].int(), "hidden": hidden[0].contiguous(), "chosen": torch.cat(chosen).int(),
            "logits": torch.cat(logits, dim=1)[0].contiguous()}
    with torch.no_grad():
        truth.update(official_tree(model, truth, head))
    return truth


def official_tree(model, truth, head):
    """What topK_genrate makes of the same rows: tokens and parents (-1: the last token's) of TREE's nodes, in its own order."""
    topk, depth, nodes = TREE
    model.top_k, model.depth, model.total_tokens = topk, depth - 1, nodes
    model.init_tree()
    model.reset_kv()
    before = torch.zeros(1, 1, dtype=torch.long)  # which it leaves out
    tokens, _, mask, positions = model.topK_genrate(truth["features"].double()[None], torch.cat([before, truth["tokens"].long()[None]], dim=1),
                                                    head, None)
    mask, parents = mask[0, 0].bool(), []
    for i in range(1, nodes + 1):
        parents += [j - 1 for j in range(i) if mask[i, j] and positions[j] == positions[i] - 1]
    return {"tree_tokens": tokens[0, 1:].int().contiguous(), "tree_parents": torch.tensor(parents, dtype=torch.int32)}


def main():
    sys.path.insert(0, sys.argv[1])
    for version, config in HEADS.items():
        generator = torch.Generator().manual_seed(20 + version)
        weights = random_weights(version, config, generator)
        folder = os.path.join(GOLDEN, "eagle", "eagle%d-v3" % version)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        save_file(weights, os.path.join(folder, "model.safetensors"))
        save_file(official(version, config, weights, generator), os.path.join(GOLDEN, "truth", "eagle%d.safetensors" % version))


main()
