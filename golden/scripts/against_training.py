#!/usr/bin/env python3
"""Continue the training of golden/tale with `verbatim train` and with PyTorch, and compare the losses of every step.

    against_training.py [--steps N] [--dtype float32|float64] [--bias-rate X] [--run DIR] [-o FILE.csv]

Both train the whole model with its three MTP modules: Megatron's loss, AdamW, clipping, a learning rate that falls to 0, and the bias update of
the routers. PyTorch computes the formulas of make_gradients.py and the steps of make_steps.py, which share no code with the trainer. It reads the
tokens of the text from the run of `verbatim train`, and cuts and shuffles them itself, as engine/choose/random.h and tools/training/order.c describe.

The exit status is 1 if a loss differs by more than --limit. --run keeps the folder of the run; a folder with a finished run is not trained again.
"""
import argparse
import csv
import os
import subprocess
import tempfile

import numpy as np
import torch

import make_gradients
import make_steps
from forward import read_config, read_safetensors, read_weights

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL, TEXT = (os.path.join(ROOT, *p) for p in (("golden", "tale"), ("examples", "train", "shakespeare.train.txt")))
OPTIONS = dict(lr=3e-4, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, max_norm=1.0, bias_update_speed=0.001)
LENGTH, BATCH, SEED, DECAY = 256, 1024, 1234, 200      # tokens of a sequence, of a step; steps until the learning rate is 0
STREAM_EPOCH = 16                                      # of tools/training/order.c


def train(a, folder):
    o = OPTIONS
    options = {"--part": "model", "--data": TEXT, "--eval-share": 0, "--eval-prompts": 0, "--type": "f32", "--seq-length": LENGTH,
               "--batch-tokens": BATCH, "--seed": SEED, "--train-iters": a.steps, "--lr": o["lr"], "--lr-decay-style": "linear", "--lr-decay-iters": DECAY,
               "--weight-decay": o["weight_decay"], "--clip-grad": o["max_norm"], "--adam-beta1": o["beta1"], "--adam-beta2": o["beta2"],
               "--adam-eps": o["eps"], "--moe-router-bias-update-rate": o["bias_update_speed"], "--loss": "megatron",
               "--mtp-loss-scaling-factor": make_gradients.FACTOR, "--log-interval": 1, "--threads": a.threads, "-o": folder}
    subprocess.run([a.verbatim, "train", MODEL] + [str(word) for pair in options.items() for word in pair], check=True, stdout=subprocess.DEVNULL)


# -- the order of the sequences -----------------------------------------------------------------------------------------------------

def philox(counter, key):
    """Philox4x32-10 of Salmon et al. 2011"""
    c, k, mask = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & mask, a >> 32 ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def shuffled(count, epoch):
    out = list(range(count))
    for i in range(count, 1, -1):
        word = philox((i, 0, STREAM_EPOCH, epoch), (SEED, 0))
        k = ((word[1] << 32 | word[0]) * i) >> 64
        out[i - 1], out[k] = out[k], out[i - 1]
    return out


def batches(folder, depths):
    data = read_safetensors(os.path.join(folder, "data.safetensors"))
    tokens, pieces, first = data["tokens"][1].tolist(), [], 0
    for end in data["ends"][1].tolist():
        pieces += [tokens[at:min(at + LENGTH, end)] for at in range(first, end, LENGTH) if min(LENGTH, end - at) >= depths + 2]
        first = end
    epoch, chosen, size = 0, [], 0
    while True:
        for number in shuffled(len(pieces), epoch):
            if chosen and size + len(pieces[number]) > BATCH:
                yield chosen
                chosen, size = [], 0
            chosen.append(pieces[number])
            size += len(pieces[number])
        yield chosen
        epoch, chosen, size = epoch + 1, [], 0


# -- PyTorch ------------------------------------------------------------------------------------------------------------------------

class Fast(make_steps.Counting):
    """The rows of an expert together, and angles that are computed once, in any type."""

    def angles(self, rows):
        if not hasattr(self, "table"):
            self.table = [x.to(torch.get_default_dtype()) for x in super().angles(LENGTH)]
        return [x[:rows] for x in self.table]

    def experts(self, x, p):
        chosen, g = self.routed(x, p)
        out = self.mlp(x, p + "shared_experts.")
        for e in range(self.c["n_routed_experts"]):
            row, place = (chosen == e).nonzero(as_tuple=True)
            out = out.index_add(0, row, g[row, place][:, None] * self.mlp(x[row], f"{p}experts.{e}."))
        return out


def weights_of(folder):
    return {n: torch.from_numpy(w).to(torch.get_default_dtype()) for n, w in read_weights(folder, [128, 128]).items()}


def continued(a, folder):
    """PyTorch's steps: for each its number, norm, total, main, by depth. Then its weights"""
    c, o, weights = read_config(MODEL), OPTIONS, weights_of(MODEL)
    trained, optimizer = make_steps.begin(weights, o)
    order, formula = batches(folder, c["num_nextn_predict_layers"]), Fast(c, weights)
    for i in range(1, a.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = o["lr"] * max(0, 1 - (i - 1) / DECAY)
        loss, norm, *losses = make_steps.step(formula, next(order), trained, optimizer, o)
        yield [i, norm, loss] + losses
    yield weights


def compare(a, folder):
    with open(os.path.join(folder, "curves.csv"), newline="", encoding="utf-8") as f:
        ours = [[float(row[k]) for k in ("step", "norm", "loss", "main", "mtp1", "mtp2", "mtp3")] for row in csv.DictReader(f) if row["loss"]]
    if len(ours) != a.steps:
        raise SystemExit(f"{folder}/curves.csv has {len(ours)} steps, wanted {a.steps}")
    rows, far = [], np.zeros(5)
    for theirs in continued(a, folder):
        if isinstance(theirs, dict):
            break
        mine = ours[len(rows)]
        far = np.maximum(far, np.abs(np.array(mine[2:]) - theirs[2:]))
        rows.append([int(mine[0]), *mine[1:3], *theirs[1:3]])
        if len(rows) % 10 == 0 or len(rows) == a.steps:
            print(f"step {len(rows):3}: loss {mine[2]:.6f}, of PyTorch {theirs[2]:.6f}; largest difference so far {far[0]:.2e}", flush=True)
    first, result = weights_of(MODEL), weights_of(os.path.join(folder, "model"))
    moved = np.sqrt(sum(float((theirs[n] - first[n]).detach().square().sum()) for n in first))
    apart = np.sqrt(sum(float((theirs[n] - result[n]).detach().square().sum()) for n in first))
    if a.output:
        with open(a.output, "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows([["step", "norm", "loss", "pytorch_norm", "pytorch_loss"]] + rows)
    mean = abs(np.mean([row[2] - row[4] for row in rows]))
    print(f"{a.steps} steps in {a.dtype}: largest difference of the loss {far[0]:.2e}, of its mean {mean:.2e}, of its parts main {far[1]:.2e} and mtp "
          + " ".join(f"{x:.2e}" for x in far[2:]) + f"; the weights moved by {moved:.4g} (L2), and are {apart:.2g} apart")
    return far[0] <= a.limit


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of PyTorch")
    p.add_argument("--bias-rate", type=float, default=OPTIONS["bias_update_speed"], help="by which the bias of the routers changes; 0: not at all")
    p.add_argument("--limit", type=float, default=1e-3)
    p.add_argument("--threads", type=int, default=1, help="of both programs")
    p.add_argument("--verbatim", default=os.path.join(ROOT, "build", "verbatim"), metavar="FILE")
    p.add_argument("--run", metavar="DIR")
    p.add_argument("-o", dest="output", metavar="FILE.csv", help="write the losses of all steps")
    a = p.parse_args()
    OPTIONS["bias_update_speed"] = a.bias_rate
    torch.set_num_threads(a.threads)
    torch.set_default_dtype(getattr(torch, a.dtype))
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.run or os.path.join(temporary, "run")
        if not os.path.exists(os.path.join(folder, "result.json")):
            train(a, folder)
        good = compare(a, folder)
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
