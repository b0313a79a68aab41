"""Text of a model's own, for training its MTP modules on what they will draft.

    python own.py --model MODEL --work WORKDIR         # writes WORKDIR/own.npy, which train.py --own reads

Each sequence begins with BOS and --opening tokens drawn at temperature 1. From there on the most likely token is taken, as
when drafting is measured. Sequences that end early are left out. No text of the corpus is read.
"""
import argparse
import os

import numpy as np
import torch

from model import rope_table
from sample import generate, load
from tokenizer import BOS_ID


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--sequences", type=int, default=2048)
    p.add_argument("--rows", type=int, default=256, help="per sequence")
    p.add_argument("--opening", type=int, default=60)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if a.device != "cpu":
        torch.set_default_device(a.device)
    model = load(a.model)
    length = a.rows + 1 + model.cfg.num_nextn_predict_layers
    rope, generator, kept = rope_table(model.cfg, length), torch.Generator(a.device).manual_seed(a.seed), []
    while len(kept) < a.sequences:
        opened = generate(model, [[BOS_ID]] * a.batch, a.opening, 1.0, generator, rope)
        opened = [ids for ids, _ in opened if len(ids) == 1 + a.opening]
        told = generate(model, opened, length - 1 - a.opening, 0.0, generator, rope)
        kept += [ids for ids, _ in told if len(ids) == length]
        print(f"{len(kept)} sequences", flush=True)
    np.save(os.path.join(a.work, "own.tmp.npy"), np.array(kept[:a.sequences], dtype=np.uint16))
    os.replace(os.path.join(a.work, "own.tmp.npy"), os.path.join(a.work, "own.npy"))


if __name__ == "__main__":
    main()
