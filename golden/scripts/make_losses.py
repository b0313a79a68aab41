#!/usr/bin/env python3
"""Write golden/truth/NAME.losses.json: the losses of docs/TRAINING.md, "Other losses", and their gradients, by PyTorch's autograd.

    make_losses.py [NAME ...]

The layers are those of make_gradients.py's Formula, in float64. The losses are PyTorch's: log_softmax, topk, smooth_l1_loss. Unlike the
reference, which stacks the rows of all depths, aligned depths are computed as HASS's repository does (HArmonizedSS/HASS, commit 38922e4,
model/cnets_hass.py): in step j every row r reads tok[r+1] and, from step 1 on, the output of row r-1 of the step before. Its query sees the keys
of rows t <= r-j that the target's hidden states made, and for m = 1..j the key of row r-j+m that step m made. Row r of step j is row r-j
of depth j. Rows r < j, of drafts that would begin before the text, have no loss here. Masked scores are -inf.

Parts of a file: "soft" is Megatron's loss with soft targets of weight 0.4; the other parts have the names of engine/base/loss.h. A part whose
name begins with "masked" is one of these with loss_masks: a row counts if the mask of the token that it predicts is 1.
"""
import argparse
import json
import os

import numpy as np
import torch
from torch.nn.functional import cross_entropy, log_softmax, smooth_l1_loss

import make_truth
from forward import read_config, read_weights, yarn_mscale
from make_gradients import LENGTHS, Formula, told, write

TINY, TRUTH = make_truth.TINY, make_truth.TRUTH
NAMES = ("v3-mtp3", "glm")
FACTOR = 0.3                        # mtp_loss_scaling_factor of part "soft"


def megatron(k, D):
    return FACTOR / D


# part: depths, which module runs, detached, weight of the main loss and of depth k, weights of the terms
PARTS = {
    "soft": (3, "module k", False, 1, megatron, dict(data=0.6, soft=0.4)),
    "fastmtp": (3, "module 0", False, 0, lambda k, D: 0.6 ** k / sum(0.6 ** j for j in range(D)), dict(data=1)),
    "sum": (2, "module k", False, 1, lambda k, D: 1, dict(data=1)),
    "eagle": (1, "module k", False, 0, lambda k, D: 1, dict(soft=0.1, features=1)),
    "eagle3": (4, "aligned", False, 0, lambda k, D: 0.8 ** k, dict(soft=1)),
    "hass": (3, "aligned", True, 0, lambda k, D: 1, dict(soft=0.1, top=1, features=1)),
}
MASKED = {"masked soft": "soft", "masked hass": "hass"}


def masks(sequences):
    """one token in three is no label; the last sequence has none"""
    return [[int((i * i + q) % 3 != 1 and q + 1 < len(sequences)) for i in range(len(s))] for q, s in enumerate(sequences)]


TERMS = ("data", "soft", "top", "features")


class Losses(Formula):
    def queries_and_keys(self, x, p):
        """of attention: q_nope [H,S,n], q_rope [H,S,r], k_nope, k_rope [S,r], v; RoPE by row"""
        rows, n, c = len(x), self.n, self.c
        if c.get("q_lora_rank"):
            q = self.linear(self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm", 1e-6), p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        q = q.reshape(rows, self.heads, -1).transpose(0, 1)
        kv = self.linear(x, p + "kv_a_proj_with_mqa")
        latent = self.norm(kv[:, :-self.r], p + "kv_a_layernorm", 1e-6)
        k_rope = self.rotate(kv[:, -self.r:])
        kv = self.linear(latent, p + "kv_b_proj").reshape(rows, self.heads, -1).transpose(0, 1)
        return q[..., :n], self.rotate(q[..., n:]), kv[..., :n], k_rope, kv[..., n:]

    def aligned_attention(self, x, p, before):
        """before: k_nope, k_rope and v of the steps before, to which this step's are appended"""
        q, q_rope, k, k_rope, v = self.queries_and_keys(x, p)
        before.append((k, k_rope, v))
        j, S, yarn = len(before) - 1, len(x), self.yarn
        m = yarn_mscale(yarn["factor"], yarn.get("mscale_all_dim", 0)) if yarn else 1.0
        scale = m * m / np.sqrt(self.n + self.r)
        r, t = torch.arange(S)[:, None], torch.arange(S)[None]
        scores, values = [], []
        for step, (k, k_rope, v) in enumerate(before):
            seen = t <= r - j if step == 0 else t == r - j + step
            s = (q @ k.mT + q_rope @ k_rope.T) * scale
            scores.append(s.masked_fill(~seen, -np.inf))
            values.append(v)
        heads = torch.cat(scores, -1).softmax(-1) @ torch.cat(values, 1)
        return self.linear(heads.transpose(0, 1).reshape(S, -1), p + "o_proj")

    def module(self, k, h, ids, before=None):
        """module k on rows that read h and the tokens ids; returns its output after shared_head.norm"""
        L = self.c["num_hidden_layers"] + k
        p = f"model.layers.{L}."
        e = self.norm(self.own(p + "embed_tokens.weight", "model.embed_tokens.weight")[ids], p + "enorm")
        x = self.linear(torch.cat((e, self.norm(h, p + "hnorm")), -1), p + "eh_proj")
        if before is None:
            x = self.layer(x, L)
        else:
            x = x + self.aligned_attention(self.norm(x, p + "input_layernorm"), p + "self_attn.", before)
            y = self.norm(x, p + "post_attention_layernorm")
            x = x + (self.experts if L >= self.c["first_k_dense_replace"] else self.mlp)(y, p + "mlp.")
        return self.norm(x, p + "shared_head.norm")

    def head(self, k, h):
        main = "lm_head.weight" if "lm_head.weight" in self.w else "model.embed_tokens.weight"
        return h @ self.own(f"model.layers.{self.c['num_hidden_layers'] + k}.shared_head.head.weight", main).T

    def depths(self, tok, h, part):
        """for each depth, the outputs of its rows i < T-k-2, and the number of the module"""
        D, runs, detached = part[:3]
        T, modules = len(tok), self.c["num_nextn_predict_layers"]
        if runs != "aligned":
            for k in range(min(D, T - 2)):
                number = k % modules if runs == "module k" else 0
                h = self.module(number, h[:T - k - 2], tok[k + 1:T - 1])
                yield h, number
            return
        before, inputs = [], []
        read = h[:T - 2]
        for j in range(min(D, T - 2)):
            inputs.append(read)
            before.clear()
            for step in inputs[:-1]:                    # the keys of earlier steps come from the inputs of these steps
                x = self.linear(torch.cat((self.norm(self.own(self.name("embed_tokens.weight"), "model.embed_tokens.weight")[tok[1:T - 1]], self.name("enorm")),
                                           self.norm(step, self.name("hnorm"))), -1), self.name("eh_proj"))
                before.append(self.queries_and_keys(self.norm(x, self.name("input_layernorm")), self.name("self_attn."))[2:])
            out = self.module(0, read, tok[1:T - 1], before)
            yield out[j:], 0
            read = torch.cat((read[:1], out[:-1]))
            if detached:
                read = read.detach()

    def name(self, rest):
        return f"model.layers.{self.c['num_hidden_layers']}.{rest}"

    def step(self, tokens, mask, part):
        """of one sequence: the sum of the main loss and its rows, and for each depth the sums of the terms and its rows"""
        tok, mask, D = torch.tensor(tokens), torch.tensor(mask, dtype=torch.bool), part[0]
        x = self.w["model.embed_tokens.weight"][tok[:-1]]
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i)
        h = self.norm(x, "model.norm")
        main = h @ self.own("lm_head.weight", "model.embed_tokens.weight").T
        target_p, features = main.softmax(-1).detach(), h.detach()
        sums = []
        for k, (g, number) in enumerate(self.depths(tok, h.detach() if part[2] else h, part)):
            rows = mask[k + 2:]
            z, target = self.head(number, g)[rows], target_p[k + 1:][rows]
            plogp = -target * log_softmax(z, -1)
            top = plogp.gather(-1, target.topk(10, -1).indices)
            sums.append((torch.stack((cross_entropy(z, tok[k + 2:][rows], reduction="sum"), plogp.sum(), top.sum(),
                                      smooth_l1_loss(g[rows], features[k + 1:][rows], reduction="none").mean(-1).sum())), len(z)))
        sums += [(torch.zeros(4), 0)] * (D - len(sums))
        return cross_entropy(main[mask[1:]], tok[1:][mask[1:]], reduction="sum"), int(mask[1:].sum()), sums


def compute(name, sequences, loss_masks, part):
    c = read_config(os.path.join(TINY, name))
    weights = {n: torch.from_numpy(w.copy()).requires_grad_() for n, w in
               read_weights(os.path.join(TINY, name), c.get("quantization_config", {}).get("weight_block_size", [128, 128])).items()}
    program = Losses(c, weights)
    steps = [program.step(tokens, mask, part) for tokens, mask in zip(sequences, loss_masks)]
    D, main_weight, weight, terms = part[0], part[3], part[4], part[5]
    main = sum(s[0] for s in steps) / sum(s[1] for s in steps)
    means = [sum(s[2][k][0] for s in steps) / max(sum(s[2][k][1] for s in steps), 1) for k in range(D)]
    depths = [sum(terms.get(t, 0) * mean[i] for i, t in enumerate(TERMS)) for mean in means]
    total = main_weight * main + sum(weight(k, D) * depth for k, depth in enumerate(depths))
    total.backward()
    out = told((total.item(), [main.item()] + [d.item() for d in depths]), {n: w.grad.numpy() for n, w in weights.items() if w.grad is not None},
               sorted(weights))
    return dict(total=out["total"], losses=out["losses"], terms=[mean.tolist() for mean in means], tensors=out["tensors"])


def make(name):
    with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    starts = np.cumsum((0,) + LENGTHS)
    parts = dict(sequences=[tokens[a:b] for a, b in zip(starts, starts[1:])])
    every = [[1] * len(s) for s in parts["sequences"]]
    for part, what in PARTS.items():
        if name == "v3-mtp3" or part in ("eagle3", "hass"):
            parts[part] = compute(name, parts["sequences"], every, what)
            print(name, part, parts[part]["total"], parts[part]["losses"])
    if name == "v3-mtp3":
        parts["loss_masks"] = masks(parts["sequences"])
        for part, of in MASKED.items():
            parts[part] = compute(name, parts["sequences"], parts["loss_masks"], PARTS[of])
            print(name, part, parts[part]["total"], parts[part]["losses"])
    write(os.path.join(TRUTH, name + ".losses.json"), parts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; none: all")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in p.parse_args().names or NAMES:
        make(name)


if __name__ == "__main__":
    main()
