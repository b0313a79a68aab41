#!/usr/bin/env python3
"""Write golden/truth/NAME.steps.json: training steps of whole models of golden/tiny/, by PyTorch in float64.

    make_steps.py [NAME ...]

Gradients are those of the formulas in make_gradients.py, clipped by torch.nn.utils.clip_grad_norm_; torch.optim.AdamW changes the weights; matrices
decay, vectors do not. After each step the bias of a router moves by the rule of the DeepSeek-V3 report (2.1.2). eps is as large as usual
gradients, so that a step is a smooth function of them: with a tiny eps, the first step is the sign of a gradient, which rounding can change.

The file has the losses and the norm of the gradients of each step, and of each tensor its largest change after the last step, its place, and the
change at another place.
"""
import argparse
import json
import os
import zlib

import numpy as np
import torch

import make_gradients
from forward import read_config, read_weights

TINY, TRUTH = make_gradients.TINY, make_gradients.TRUTH
NAMES = ("v3", "v2")
OPTIONS = dict(lr=0.003, beta1=0.9, beta2=0.95, eps=0.01, weight_decay=0.1, max_norm=0.5, bias_update_speed=0.002)
STEPS = 8


class Counting(make_gradients.Formula):
    """Counts how many tokens chose each expert. Depth k has k+1 rows at the end that predict nothing."""
    def chose(self, p, chosen):
        chosen = chosen[:len(chosen) - max(0, int(p.split(".")[2]) - self.c["num_hidden_layers"] + 1)]
        load = self.loads.setdefault(p, np.zeros(self.c["n_routed_experts"]))
        np.add.at(load, chosen.numpy().reshape(-1), 1)


def begin(weights, o):
    """name -> tensor: the weights that have gradients, and their optimizer"""
    trained = {n: w.requires_grad_() for n, w in weights.items() if not n.endswith("e_score_correction_bias")}
    return trained, torch.optim.AdamW([{"params": [w for w in trained.values() if w.ndim == 2], "weight_decay": o["weight_decay"]},
                                       {"params": [w for w in trained.values() if w.ndim == 1], "weight_decay": 0.0}],
                                      lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"])


def step(formula, sequences, trained, optimizer, o):
    """one step; total, norm of the gradients, main, by depth"""
    formula.loads = {}
    losses = make_gradients.means([formula.losses(tokens, formula.c["num_nextn_predict_layers"]) for tokens in sequences])
    loss = make_gradients.total(losses)
    loss.backward()
    for w in trained.values():                                  # an expert that no token chose has the gradient 0
        w.grad = torch.zeros_like(w) if w.grad is None else w.grad
    norm = torch.nn.utils.clip_grad_norm_(trained.values(), o["max_norm"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for p, load in formula.loads.items():
        bias = formula.w.get(p + "gate.e_score_correction_bias")
        if bias is not None:
            bias += o["bias_update_speed"] * torch.from_numpy(np.sign(load.mean() - load))
    return [loss.item(), norm.item()] + [x.item() for x in losses]


def make(name):
    with open(os.path.join(TRUTH, name + ".gradients.json"), encoding="utf-8") as f:
        sequences = json.load(f)["sequences"]
    c = read_config(os.path.join(TINY, name))
    weights = {n: torch.from_numpy(w.copy()) for n, w in
               read_weights(os.path.join(TINY, name), c.get("quantization_config", {}).get("weight_block_size", [128, 128])).items()}
    first = {n: w.clone() for n, w in weights.items()}
    o = OPTIONS
    trained, optimizer = begin(weights, o)
    steps = [step(Counting(c, weights), sequences, trained, optimizer, o) for _ in range(STEPS)]
    changes = {}
    for n, w in sorted(weights.items()):
        change = (w.detach() - first[n]).numpy().reshape(-1)
        places = [int(np.abs(change).argmax()), zlib.crc32(n.encode()) % len(change)]
        changes[n] = [[i, float(change[i])] for i in places]
    with open(os.path.join(TRUTH, name + ".steps.json"), "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join([f'"sequences": {json.dumps(sequences)}', f'"mtp_loss_scaling_factor": {make_gradients.FACTOR}',
                                    f'"options": {json.dumps(o)}', '"steps": [\n' + ",\n".join(map(json.dumps, steps)) + "]",
                                    '"changes": {\n' + ",\n".join(f"{json.dumps(n)}: {json.dumps(x)}" for n, x in changes.items()) + "}"]) + "\n}\n")
    print(name, "loss", steps[0][0], "->", steps[-1][0], "norm", steps[0][1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; none: all")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in p.parse_args().names or NAMES:
        make(name)


if __name__ == "__main__":
    main()
