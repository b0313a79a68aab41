#!/usr/bin/env python3
"""Write golden/truth/eagle1.gradients.json, eagle3.gradients.json and eagle3-norms.gradients.json: losses of the heads in golden/eagle/ for
golden/tiny/v3, and their gradients, by PyTorch's autograd in float64.

    make_eagle_gradients.py

The target is make_gradients.py's Formula. The heads are written here from the formulas of SafeAILab/EAGLE, commit cb7e084, in plain PyTorch. The steps
of training are those of the published trainers, which count their rows in different ways:

  EAGLE-1   as in HASS (HArmonizedSS/HASS, commit 38922e4, train/main_hass.py and model/cnets_hass.py): in step j every row r reads tok[r+1] and, from step
            1 on, the output of row r-1 of the step before. Its query sees the keys of rows t <= r-j that the target's hidden states made, and for
            m = 1..j the key of row r-j+m that step m made. Row r of step j is row r-j of depth j; rows r < j have no loss here, and masked
            scores are -inf.
  EAGLE-3   as in eagle/traineagle3/cnets.py: in each step the tokens and the target move one place to the left, and row i takes row i of the step before. Its
            query sees the keys of rows t <= i of step 0 and the key of row i of each later step. The target's logits are those of the head's
            vocabulary; a row counts if the target's best token is in it, and the mean is over all rows.

In the unrolled part, each step is a pass of its own: rows see the keys of the same step. A data term counts if the text's token is in the vocabulary.
The last file has the heads of make_eagle_norms.py, with the loss `eagle3`.
The published trainers keep the embedding as it is; its gradient is here too. The first number of `losses` is that of the target, which is not trained: 0.
"""
import json
import os

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import log_softmax, silu, smooth_l1_loss

import make_truth
from forward import read_config, read_weights
from make_eagle_norms import VARIANTS, WEIGHTS
from make_gradients import LENGTHS, Formula, told, write
from make_losses import masks

TRUTH = make_truth.TRUTH
EAGLE = os.path.join(os.path.dirname(make_truth.TINY), "eagle")
TOP = 10
TERMS = ("data", "soft", "top", "features")
# part: depths, aligned, detached, weight of depth k, weights of the terms
PARTS = {
    1: {"eagle": (1, True, False, lambda k, D: 1, dict(soft=0.1, features=1)),
        "hass": (3, True, True, lambda k, D: 1, dict(soft=0.1, top=1, features=1)),
        "fastmtp": (3, False, False, lambda k, D: 0.6 ** k / sum(0.6 ** j for j in range(D)), dict(data=1))},
    3: {"eagle3": (4, True, False, lambda k, D: 0.8 ** k, dict(soft=1)),
        "mixed": (3, True, True, lambda k, D: 1, dict(data=0.5, soft=0.25, top=0.75)),
        "fastmtp": (3, False, False, lambda k, D: 0.6 ** k / sum(0.6 ** j for j in range(D)), dict(data=1))},
}
MASKED = {1: {"masked hass": "hass"}, 3: {"masked mixed": "mixed"}}


class Target(Formula):
    def rows(self, tok):
        """before layers 0, 1 and 2, which are 2, L/2 and L-3 of three layers; after the norm; logits"""
        x, three = self.w["model.embed_tokens.weight"][tok], []
        for i in range(self.c["num_hidden_layers"]):
            three.append(x)
            x = self.layer(x, i)
        h = self.norm(x, "model.norm")
        return torch.cat(three, -1), h, h @ self.w["lm_head.weight"].T


class Head:
    def __init__(self, version, config, weights, target_head, keys):
        self.true = keys  # of config.json
        self.version, self.w, self.eps, self.target_head = version, weights, config["rms_norm_eps"], target_head
        self.H, self.G, self.theta = config["num_attention_heads"], config["num_key_value_heads"], config["rope_theta"]
        self.prefix = "layers.0." if version == 1 else "midlayer."

    def norm(self, x, name):
        return self.w[name + ".weight"] * x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def heads(self, x, name, count):
        return self.linear(x, f"{self.prefix}self_attn.{name}").unflatten(-1, (count, -1)).transpose(0, 1)

    def turn(self, x, places):
        D = x.shape[-1]
        angle = torch.tensor(places, dtype=torch.float64)[:, None] * self.theta ** (-torch.arange(0, D, 2) / D)
        angle = torch.cat((angle, angle), -1)
        return x * angle.cos() + torch.cat((-x[..., D // 2:], x[..., :D // 2]), -1) * angle.sin()

    def first(self, three):
        """what depth 0 of an EAGLE-3 takes"""
        if "norm_before_fc" in self.true:
            three = self.norm(three, "input_norm")
        if "fc_norm" in self.true:
            three = torch.cat([self.norm(x, f"fc_norm.{i}") for i, x in enumerate(three.chunk(3, -1))], -1)
        return self.linear(three, "fc")

    def handed(self, y):
        return self.norm(y, "norm") if "norm_output" in self.true else y

    def begin(self, ids, h):
        """the residual stream, and what attention reads"""
        e = self.w["embed_tokens.weight"][ids]
        if self.version == 1:
            x = self.linear(torch.cat((e, h), -1), "fc")
            return x, x
        n = self.norm(h, self.prefix + "hidden_norm")
        return n if "norm_before_residual" in self.true else h, torch.cat((self.norm(e, self.prefix + "input_layernorm"), n), -1)

    def keys(self, x, places):
        per = self.H // self.G
        return [k.repeat_interleave(per, 0) for k in (self.turn(self.heads(x, "k_proj", self.G), places), self.heads(x, "v_proj", self.G))]

    def scores(self, q, keys):
        return q @ keys.mT / np.sqrt(q.shape[-1])

    def end(self, x, heads):
        m = x + self.linear(heads.transpose(0, 1).flatten(1), self.prefix + "self_attn.o_proj")
        n = self.norm(m, self.prefix + "post_attention_layernorm")
        gate, up = self.linear(n, self.prefix + "mlp.gate_proj"), self.linear(n, self.prefix + "mlp.up_proj")
        return m + self.linear(silu(gate) * up, self.prefix + "mlp.down_proj")

    def logits(self, y):
        return y @ self.target_head.T if self.version == 1 else self.linear(self.norm(y, "norm"), "lm_head")

    # Each of these yields y of the rows i < T-k-2 of depth k = 0, 1, ...

    def unrolled(self, tok, h, D):
        for k in range(min(D, len(tok) - 2)):
            S = len(tok) - k - 2
            x, a = self.begin(tok[k + 1:k + 1 + S], h[:S])
            q, (keys, values) = self.turn(self.heads(a, "q_proj", self.H), range(S)), self.keys(a, range(S))
            later = torch.ones(S, S, dtype=torch.bool).triu(1)
            y = self.end(x, self.scores(q, keys).masked_fill(later, -np.inf).softmax(-1) @ values)
            yield y
            h = self.handed(y)

    def hass(self, tok, h, D, detached):
        S, inputs, read = len(tok) - 2, [], h[:len(tok) - 2]
        ids, r, t = tok[1:S + 1], torch.arange(S)[:, None], torch.arange(S)[None]
        for j in range(min(D, S)):
            inputs.append(read)
            x, a = self.begin(ids, read)
            q, scores, values = self.turn(self.heads(a, "q_proj", self.H), range(S)), [], []
            for m, step in enumerate(inputs):
                keys, v = self.keys(self.begin(ids, step)[1], range(S))
                seen = t <= r - j if m == 0 else t == r - j + m
                scores.append(self.scores(q, keys).masked_fill(~seen, -np.inf))
                values.append(v)
            out = self.end(x, torch.cat(scores, -1).softmax(-1) @ torch.cat(values, 1))
            yield out[j:]
            read = torch.cat((read[:1], out[:-1]))
            if detached:
                read = read.detach()

    def traineagle3(self, tok, h, D, detached):
        S, ids, inputs, read = len(tok) - 1, tok[1:], [], h
        later = torch.ones(S, S, dtype=torch.bool).triu(1)
        for k in range(min(D, len(tok) - 2)):
            inputs.append((ids, read))
            x, a = self.begin(ids, read)
            q = self.turn(self.heads(a, "q_proj", self.H), range(k, k + S))
            before = [self.keys(self.begin(*step)[1], range(m, m + S)) for m, step in enumerate(inputs)]
            scores = [self.scores(q, before[0][0]).masked_fill(later, -np.inf)]
            scores += [(q * keys).sum(-1, keepdim=True) / np.sqrt(q.shape[-1]) for keys, _ in before[1:]]
            p = torch.cat(scores, -1).softmax(-1)
            y = self.end(x, p[..., :S] @ before[0][1] + sum(p[..., S + m, None] * v for m, (_, v) in enumerate(before[1:])))
            yield y[:S - k - 1]
            read = self.handed(y)
            if detached:
                read = read.detach()
            ids = torch.cat((ids[1:], torch.zeros(1, dtype=ids.dtype)))


def terms(head, y, tok, target_z, features, d2t, rows):
    """the sums of the terms of rows that predict tok and learn from target_z; rows: those with a loss"""
    y, tok, target_z = y[rows], tok[rows], target_z[rows]
    log_q, places = log_softmax(head.logits(y), -1), torch.arange(len(y))
    if d2t is None:
        p, ids, known, best = target_z.softmax(-1), tok, torch.ones(len(y)), torch.ones(len(y))
    else:
        drafted = d2t + torch.arange(len(d2t))
        id_of = torch.full(target_z.shape[-1:], -1, dtype=torch.long)
        id_of[drafted] = torch.arange(len(drafted))
        p, ids, known, best = target_z[:, drafted].softmax(-1), id_of[tok], (id_of[tok] >= 0).double(), (id_of[target_z.argmax(-1)] >= 0).double()
    plogp = -p * log_q
    far = smooth_l1_loss(y, features[rows], reduction="none").mean(-1).sum() if head.version == 1 else torch.zeros(())
    return torch.stack((-(log_q[places, ids.clamp(min=0)] * known).sum(), (plogp.sum(-1) * best).sum(),
                        (plogp.gather(-1, p.topk(TOP, -1).indices).sum(-1) * best).sum(), far))


def compute(version, target, sequences, loss_masks, part, keys=()):
    D, aligned, detached, weight, weights_of_terms = part
    folder = os.path.join(EAGLE, f"eagle{version}-v3")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    w = load_file(os.path.join(folder, "model.safetensors"))
    d2t = w.get("d2t")
    if "norm_before_fc" in keys:
        w["input_norm.weight"] = WEIGHTS
    if "fc_norm" in keys:
        w.update({f"fc_norm.{i}.weight": x for i, x in enumerate(WEIGHTS.chunk(3))})
    w = {n: x.double().requires_grad_() for n, x in w.items() if x.is_floating_point()}
    head = Head(version, config, w, target.w["lm_head.weight"], keys)
    sums, counts = [torch.zeros(len(TERMS)) for _ in range(D)], [0] * D
    for tokens, mask in zip(sequences, loss_masks):
        tok, mask = torch.tensor(tokens), torch.tensor(mask, dtype=torch.bool)
        three, after_norm, z = target.rows(tok[:-1])
        h = after_norm if version == 1 else head.first(three)
        run = head.hass if version == 1 else head.traineagle3
        for k, y in enumerate(run(tok, h, D, detached) if aligned else head.unrolled(tok, h, D)):
            rows = mask[k + 2:]
            sums[k] = sums[k] + terms(head, y, tok[k + 2:], z[k + 1:], after_norm[k + 1:], d2t, rows)
            counts[k] += int(rows.sum())
    means = [s / max(n, 1) for s, n in zip(sums, counts)]
    depths = [sum(weights_of_terms.get(t, 0) * mean[i] for i, t in enumerate(TERMS)) for mean in means]
    total = sum(weight(k, D) * depth for k, depth in enumerate(depths))
    total.backward()
    out = told((total.item(), [0.0] + [d.item() for d in depths]), {n: x.grad.numpy() for n, x in w.items() if x.grad is not None}, sorted(w))
    return dict(total=out["total"], losses=out["losses"], terms=[mean.tolist() for mean in means], tensors=out["tensors"])


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    tiny = os.path.join(make_truth.TINY, "v3")
    c = read_config(tiny)
    target = Target(c, {n: torch.from_numpy(w.copy()) for n, w in read_weights(tiny, c.get("quantization_config", {}).get("weight_block_size", [128, 128])).items()})
    with open(os.path.join(TRUTH, "v3.json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    starts = np.cumsum((0,) + LENGTHS)
    sequences = [tokens[a:b] for a, b in zip(starts, starts[1:])]
    for version, named in PARTS.items():
        parts = dict(sequences=sequences, loss_masks=masks(sequences))
        every = [[1] * len(s) for s in sequences]
        for part, what in named.items():
            parts[part] = compute(version, target, sequences, every, what)
        for part, of in MASKED[version].items():
            parts[part] = compute(version, target, sequences, parts["loss_masks"], named[of])
        for part in (*named, *MASKED[version]):
            print(version, part, parts[part]["total"], parts[part]["losses"], parts[part]["terms"])
        write(os.path.join(TRUTH, f"eagle{version}.gradients.json"), parts)
    parts = dict(sequences=sequences, loss_masks=masks(sequences))
    for name, keys in VARIANTS.items():
        parts[name] = compute(3, target, sequences, every, PARTS[3]["eagle3"], keys)
        print(name, parts[name]["total"], parts[name]["losses"])
    write(os.path.join(TRUTH, "eagle3-norms.gradients.json"), parts)


if __name__ == "__main__":
    main()
