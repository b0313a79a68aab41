#!/usr/bin/env python3
"""Write golden/truth/heads.losses.json: losses of the parallel heads golden/heads/parallel-v3 and of their target golden/tiny/v3, and their
gradients, by PyTorch's autograd.

    make_head_losses.py

The layers are those of make_gradients.py's Formula, in float64: one with the target's config and weights, one with those of the heads. All
gradients flow into the target. Parts of the file: "before" is the sum of the target's loss and those of the heads (Gloeckle et al. 2024,
eq. 2), which read the rows before the target's last layer; "after" the same with the rows after it; in "soft", heads learn from the
target's distribution with weight 0.4, and the factor of their losses is 0.5.
"""
import json
import os

import numpy as np
import torch
from torch.nn.functional import cross_entropy, log_softmax

import make_truth
from forward import read_config, read_weights
from make_gradients import LENGTHS, Formula, told, write

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FOLDER = os.path.join(GOLDEN, "heads", "parallel-v3")
# part: layers of the trunk, counted from the last; factor; weights of data and soft
PARTS = {"before": (1, 1, 1, 0), "after": (0, 1, 1, 0), "soft": (1, 0.5, 0.6, 0.4)}


def parameters(folder, block):
    return {n: torch.from_numpy(w.copy()).double().requires_grad_() for n, w in read_weights(folder, block).items()}


def sums(target, heads, tokens, back):
    """of one sequence: the sum of the main loss and its rows, and for each head those of data and soft, and its rows"""
    tok, L = torch.tensor(tokens), target.c["num_hidden_layers"]
    x = target.w["model.embed_tokens.weight"][tok[:-1]]
    streams = [x]
    for i in range(L):
        streams.append(target.layer(streams[-1], i))
    head = target.own("lm_head.weight", "model.embed_tokens.weight").T
    main = target.norm(streams[L], "model.norm") @ head
    p, out = main.softmax(-1).detach(), []
    for k in range(heads.c["n_future_tokens"] - 1):
        rows = max(len(tok) - k - 2, 0)
        if not rows:
            out.append((torch.zeros(2), 0))
            continue
        z = target.norm(heads.layer(streams[L - back][:rows], L + k), "model.norm") @ head
        soft = -(p[k + 1:] * log_softmax(z, -1)).sum()
        out.append((torch.stack((cross_entropy(z, tok[k + 2:], reduction="sum"), soft)), rows))
    return cross_entropy(main, tok[1:], reduction="sum"), len(tok) - 1, out


def compute(sequences, back, factor, data, soft):
    c, own = read_config(make_truth.TINY + "/v3"), read_config(FOLDER)
    of_target = parameters(os.path.join(make_truth.TINY, "v3"), c["quantization_config"]["weight_block_size"])
    of_heads = parameters(FOLDER, None)
    L = c["num_hidden_layers"]
    renamed = {f"model.layers.{L + int(n.split('.')[1])}.{n.split('.', 2)[2]}": w for n, w in of_heads.items()}
    steps = [sums(Formula(c, of_target), Formula(own, renamed), tokens, back) for tokens in sequences]
    main = sum(s[0] for s in steps) / sum(s[1] for s in steps)
    means = [sum(h[0] for h in one) / max(sum(h[1] for h in one), 1) for one in zip(*(s[2] for s in steps))]
    depths = [data * mean[0] + soft * mean[1] for mean in means]
    total = main + factor * sum(depths)
    total.backward()
    weights = {**of_target, **of_heads}
    out = told((total.item(), [main.item()] + [d.item() for d in depths]), {n: w.grad.numpy() for n, w in weights.items() if w.grad is not None},
               sorted(weights))
    return dict(total=out["total"], losses=out["losses"], tensors=out["tensors"])


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with open(os.path.join(make_truth.TRUTH, "v3.json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    starts = np.cumsum((0,) + LENGTHS)
    parts = dict(heads="golden/heads/parallel-v3", sequences=[tokens[a:b] for a, b in zip(starts, starts[1:])])
    for part, what in PARTS.items():
        parts[part] = compute(parts["sequences"], *what)
        print(part, parts[part]["total"], parts[part]["losses"])
    write(os.path.join(make_truth.TRUTH, "heads.losses.json"), parts)


main()
