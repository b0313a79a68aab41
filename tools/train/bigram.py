"""Fit embedding and head to the corpus's token pairs, so that training does not begin by learning them.

    python bigram.py --work WORKDIR        # after tokenizer.py; writes WORKDIR/bigram.pt, which train.py starts from

The fresh network is the identity on the residual stream (o_proj and down_proj are zero), so the target computes
head(RMSNorm(Emb(tok[i]))): a factored bigram model. It is fitted on the V x V matrix of pair counts, whole, by Adam.
"""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from model import Config


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True)
    p.add_argument("--iterations", type=int, default=150)
    p.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    d = Config.hidden_size
    ids = np.load(os.path.join(a.work, "tales.train.npy")).astype(np.int64)
    V = int(ids.max()) + 1
    counts = torch.from_numpy(np.bincount(ids[:-1] * V + ids[1:], minlength=V * V)).view(V, V).float()
    target = (counts + 0.02) / counts.sum()
    weight = target.sum(1, keepdim=True)
    emb = torch.randn(V, d, requires_grad=True)
    head = (0.02 * torch.randn(V, d)).requires_grad_()
    opt = torch.optim.Adam([{"params": emb, "lr": 0.06}, {"params": head, "lr": 0.02}], betas=(0.9, 0.95))
    base = [0.06, 0.02]
    begin = time.time()
    for i in range(a.iterations):
        for g, lr in zip(opt.param_groups, base):
            g["lr"] = lr * min(1.0, 1.05 - i / a.iterations)
        z = F.rms_norm(emb, (d,), None, 1e-6) @ head.t()
        loss = (z.logsumexp(1, keepdim=True) * weight).sum() - (z * target).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 25 == 0 or i == a.iterations - 1:
            print(f"iteration {i} loss {loss.item():.4f} {time.time() - begin:.0f} s", flush=True)
            torch.save({"embed_tokens": emb.detach(), "lm_head": head.detach()}, os.path.join(a.work, "bigram.pt"))


if __name__ == "__main__":
    main()
