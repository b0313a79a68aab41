#!/usr/bin/env python3
"""Write golden/truth/NAME.gradients.json: losses and gradients of the checkpoints of golden/tiny/, by PyTorch's autograd in float64.

    make_gradients.py [NAME ...]

Two programs that share no code compute them:
  transformers   the class of the family and, for MTP modules, MtpModel's layers, "widened" as in against_transformers.py
  the formula    the class Formula below: the formulas of docs/SEMANTICS.md in plain PyTorch

A file has two parts. "main" is the mean cross entropy of the target, by transformers. "mtp", of models with MTP modules,
is the loss of Megatron-LM (megatron/core/transformer/multi_token_prediction.py, process_mtp_loss and roll_tensor): for the
text tok[0..T-1], tokens are tok[0..T-2] and labels tok[1..T-1]; for each depth, tokens, labels and the mask of the loss are
rolled left once more, and what comes in at the end is masked. The losses of a depth are divided by the number of labels that
are not masked, the depths are averaged, and the mean is multiplied by mtp_loss_scaling_factor. Gradients flow from the
modules into the target. "mtp" is by the formula; its distance from MtpModel is printed.

Of each tensor there are the norm of its gradient, and two entries: the largest, and one at a random place.
"""
import argparse
import json
import os
import zlib

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import make_truth
from against_transformers import Witness, widened
from forward import read_config, read_weights, yarn_mscale

TINY, TRUTH = make_truth.TINY, make_truth.TRUTH
NAMES = ("v3", "v3-mtp3", "glm", "v2", "v2-lite", "moonlight", "mistral4")
LENGTHS = (30, 9, 3, 2)             # of the sequences; the first reaches Mistral 4's scaled queries, the last has no row of a module
FACTOR = 0.3                        # mtp_loss_scaling_factor


class Formula:
    """docs/SEMANTICS.md in PyTorch. weights: name -> tensor, those of the checkpoint"""

    def __init__(self, c, weights):
        self.c, self.w, self.eps = c, weights, c["rms_norm_eps"]
        self.heads, self.n, self.r, self.v = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        self.yarn = c["rope_scaling"] or {}

    def norm(self, x, name, eps=None):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + (eps or self.eps)) * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def angles(self, rows):
        """cos and sin [rows, r/2]"""
        c, y, r = self.c, self.yarn, self.r
        f, factor = c["rope_theta"] ** (-np.arange(0, r, 2) / r), 1.0
        if y:
            low, high = (r * np.log(y["original_max_position_embeddings"] / (b * 2 * np.pi)) / (2 * np.log(c["rope_theta"]))
                         for b in (y.get("beta_fast", 32), y.get("beta_slow", 1)))
            low, high = max(np.floor(low), 0), min(np.ceil(high), r - 1)
            ramp = np.clip((np.arange(r // 2) - low) / (high - low + (0.001 if low == high else 0)), 0, 1)
            f = f / y["factor"] * ramp + f * (1 - ramp)
            factor = yarn_mscale(y["factor"], y.get("mscale", 1)) / yarn_mscale(y["factor"], y.get("mscale_all_dim", 0))
        angle = torch.from_numpy(np.arange(rows)[:, None] * f)
        return angle.cos() * factor, angle.sin() * factor

    def rotate(self, x):
        """x [..., rows, r]: adjacent pairs; every tiny checkpoint has these"""
        cos, sin = self.angles(x.shape[-2])
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    def attention(self, x, p):
        rows, n, c = len(x), self.n, self.c
        if c.get("q_lora_rank"):
            q = self.linear(self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm", 1e-6), p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        q = q.reshape(rows, self.heads, -1).transpose(0, 1)
        kv = self.linear(x, p + "kv_a_proj_with_mqa")
        latent = self.norm(kv[:, :-self.r], p + "kv_a_layernorm", 1e-6)
        kv, k_rope = self.linear(latent, p + "kv_b_proj").reshape(rows, self.heads, -1).transpose(0, 1), self.rotate(kv[:, -self.r:])
        if "llama_4_scaling_beta" in self.yarn:
            p_over_l = torch.arange(rows) // self.yarn["original_max_position_embeddings"]
            q = q * (1 + self.yarn["llama_4_scaling_beta"] * torch.log1p(p_over_l.double()))[:, None]
        mistral = c["architectures"][0] == "Mistral4ForCausalLM"
        m = yarn_mscale(self.yarn["factor"], self.yarn.get("mscale_all_dim", 0)) if self.yarn and not mistral else 1.0
        scores = (q[..., :n] @ kv[..., :n].mT + self.rotate(q[..., n:]) @ k_rope.T) * (m * m / np.sqrt(n + self.r))
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        heads = scores.masked_fill(later, -np.inf).softmax(-1) @ kv[..., n:]
        return self.linear(heads.transpose(0, 1).reshape(rows, -1), p + "o_proj")

    def mlp(self, x, p):
        gate = self.linear(x, p + "gate_proj")
        return self.linear(gate * gate.sigmoid() * self.linear(x, p + "up_proj"), p + "down_proj")

    def chose(self, p, chosen):
        """for make_steps.py"""

    def routed(self, x, p):
        """the experts of each row, ascending, and their weights"""
        c, E = self.c, self.c["n_routed_experts"]
        logits = self.linear(x, p + "gate")
        s = logits.sigmoid() if c["scoring_func"] == "sigmoid" else logits.softmax(-1)
        choice = s.detach().numpy().copy()
        if c["topk_method"] == "noaux_tc":
            choice += self.w[p + "gate.e_score_correction_bias"].detach().numpy()
        if c["topk_method"] != "greedy" and c["n_group"] > 1:
            group = np.sort(choice.reshape(len(x), c["n_group"], -1), axis=-1)
            group = group[..., -1] if c["topk_method"] == "group_limited_greedy" else group[..., -2:].sum(-1)
            out = np.argsort(-group, axis=-1, kind="stable")[:, c["topk_group"]:]
            for row, groups in enumerate(out):
                choice[row, np.isin(np.arange(E) // (E // c["n_group"]), groups)] = 0 if c["topk_method"] == "group_limited_top2" else -np.inf
        chosen = torch.from_numpy(np.sort(np.argsort(-choice, axis=-1, kind="stable")[:, :c["num_experts_per_tok"]], axis=-1))
        self.chose(p, chosen)
        g = s.gather(1, chosen)
        if c["norm_topk_prob"]:
            g = g / g.sum(-1, keepdim=True)
        if not c["norm_topk_prob"] or c["scoring_func"] == "sigmoid" or c["topk_method"] == "group_limited_top2":
            g = g * c["routed_scaling_factor"]
        return chosen, g

    def experts(self, x, p):
        chosen, g = self.routed(x, p)
        rows = [sum(g[i, j] * self.mlp(x[i:i + 1], f"{p}experts.{e}.") for j, e in enumerate(chosen[i].tolist())) for i in range(len(x))]
        return torch.cat(rows) + self.mlp(x, p + "shared_experts.")

    def layer(self, x, i):
        p, c = f"model.layers.{i}.", self.c
        x = x + self.attention(self.norm(x, p + "input_layernorm"), p + "self_attn.")
        y = self.norm(x, p + "post_attention_layernorm")
        return x + (self.experts if i >= c["first_k_dense_replace"] else self.mlp)(y, p + "mlp.")

    def own(self, name, otherwise):
        return self.w[name if name in self.w else otherwise]

    def losses(self, tokens, depths):
        """of one sequence: [sum of the losses, number of labels] of the target and of each depth"""
        tok, L = torch.tensor(tokens), self.c["num_hidden_layers"]
        ids, labels, mask = tok[:-1], tok[1:], torch.ones(len(tok) - 1)
        embed, head = self.w["model.embed_tokens.weight"], self.own("lm_head.weight", "model.embed_tokens.weight")
        x = embed[ids]
        for i in range(L):
            x = self.layer(x, i)
        h = self.norm(x, "model.norm")
        out = [[cross_entropy(h @ head.T, labels, reduction="sum"), len(labels)]]
        for k in range(depths):
            ids, labels, mask = (torch.cat((a[1:], torch.zeros(1, dtype=a.dtype))) for a in (ids, labels, mask))
            p = f"model.layers.{L + k}."
            e = self.norm(self.own(p + "embed_tokens.weight", "model.embed_tokens.weight")[ids], p + "enorm")
            x = self.layer(self.linear(torch.cat((e, self.norm(h, p + "hnorm")), -1), p + "eh_proj"), L + k)
            h = self.norm(x, p + "shared_head.norm")
            head = self.own(p + "shared_head.head.weight", "lm_head.weight" if "lm_head.weight" in self.w else "model.embed_tokens.weight")
            out.append([(cross_entropy(h @ head.T, labels, reduction="none") * mask).sum(), int(mask.sum())])
        return out


def means(sequences):
    """the losses of all sequences together"""
    return [sum(s[0] for s in one) / max(sum(s[1] for s in one), 1) for one in zip(*sequences)]


def total(losses):
    return losses[0] + (FACTOR * sum(losses[1:]) / len(losses[1:]) if losses[1:] else 0)


def by_formula(name, sequences, depths):
    """total, losses, name -> gradient"""
    c = read_config(os.path.join(TINY, name))
    weights = {n: torch.from_numpy(w.copy()).requires_grad_() for n, w in
               read_weights(os.path.join(TINY, name), c.get("quantization_config", {}).get("weight_block_size", [128, 128])).items()}
    formula = Formula(c, weights)
    losses = means([formula.losses(tokens, depths) for tokens in sequences])
    total(losses).backward()
    return total(losses).item(), [loss.item() for loss in losses], {n: w.grad.numpy() for n, w in weights.items() if w.grad is not None}


def module_losses(witness, tokens, hidden, depths):
    """a sequence's losses by the layers of MtpModel; they count RoPE positions from i+k+1, which is only a shift"""
    out = []
    for k in range(depths):
        rows = len(tokens) - k - 2
        if rows <= 0:
            out.append([torch.zeros(()), 0])
            continue
        hidden = witness.mtp.forward_layer(k, hidden[:, :rows], torch.arange(k + 1, k + 1 + rows)[None], None,
                                           input_ids=torch.tensor([tokens[k + 1:k + 1 + rows]]))
        logits = witness.mtp._project_to_logits(hidden)[0]
        out.append([cross_entropy(logits, torch.tensor(tokens[k + 2:]), reduction="sum"), rows])
    return out


def split_experts(name, grad):
    """the class's 3D tensors -> experts.E.{gate,up,down}_proj.weight"""
    if name.endswith("experts.gate_up_proj"):
        half, stem = grad.shape[1] // 2, name[:-len("gate_up_proj")]
        for e, both in enumerate(grad):
            yield f"{stem}{e}.gate_proj.weight", both[:half]
            yield f"{stem}{e}.up_proj.weight", both[half:]
    elif name.endswith("experts.down_proj"):
        for e, one in enumerate(grad):
            yield f"{name[:-len('down_proj')]}{e}.down_proj.weight", one
    else:
        yield name, grad


def by_transformers(name, sequences, depths):
    """the same; copies of the embedding and the head, which MtpModel does not have, add to the main ones"""
    with widened(True):
        witness = Witness(name)
        parameters = dict(witness.model.named_parameters())
        if depths:
            for n, p in witness.mtp.named_parameters():
                k, _, rest = n[len("layers."):].partition(".")
                if n.startswith("layers."):
                    rest = "shared_head.norm.weight" if rest == "post_norm.weight" else rest.removeprefix("mtp_block.")
                    parameters[f"model.layers.{witness.layers + int(k)}.{rest}"] = p
        for p in parameters.values():
            p.requires_grad_(True).grad = None
        losses = []
        for tokens in sequences:
            hidden = witness.model.model(input_ids=torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
            main = [cross_entropy(witness.model.lm_head(hidden)[0], torch.tensor(tokens[1:]), reduction="sum"), len(tokens) - 1]
            losses.append([main] + module_losses(witness, tokens, hidden, depths))
        losses = means(losses)
        total(losses).backward()
    grads = {n: g for name, p in parameters.items() if p.grad is not None for n, g in split_experts(name, p.grad.numpy())}
    return total(losses).item(), [loss.item() for loss in losses], grads


def distance(ours, theirs, copies=()):
    """the largest distance of two gradients of a tensor, relative to the norm. copies: tensor -> tensor to which it is added"""
    ours = dict(ours)
    for copy, main in copies:
        if copy in ours:
            ours[main] = ours[main] + ours.pop(copy)
    assert not set(ours) - set(theirs), set(ours) - set(theirs)      # tensors that no token reached may be missing in `ours`
    return max(float(np.abs(ours.get(n, 0 * g) - g).max() / max(np.linalg.norm(g), 1e-300)) if np.any(g) else float(np.abs(ours.get(n, g)).max())
               for n, g in theirs.items())


def told(losses, grads, names):
    tensors = {}
    for name in names:
        if name not in grads or not np.any(grads[name]):
            continue
        g = grads[name].reshape(-1)
        places = [int(np.abs(g).argmax()), zlib.crc32(name.encode()) % len(g)]
        tensors[name] = [float(np.linalg.norm(g))] + [[i, float(g[i])] for i in places]
    return dict(total=losses[0], losses=losses[1], tensors=tensors)


def write(path, parts):
    """a tensor a line"""
    with open(path, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(
            f"{json.dumps(k)}: " + (json.dumps(v) if not isinstance(v, dict) else json.dumps({n: x for n, x in v.items() if n != "tensors"})[:-1] +
                                    ', "tensors": {\n' + ",\n".join(f"{json.dumps(n)}: {json.dumps(t)}" for n, t in v["tensors"].items()) + "}}")
            for k, v in parts.items()) + "\n}\n")


def make(name):
    with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    starts = np.cumsum((0,) + LENGTHS)
    sequences = [tokens[a:b] for a, b in zip(starts, starts[1:])]
    c = read_config(os.path.join(TINY, name))
    depths, L = c["num_nextn_predict_layers"], c["num_hidden_layers"]
    theirs, formula = by_transformers(name, sequences, 0), by_formula(name, sequences, 0)
    if c["tie_word_embeddings"]:
        theirs[2].pop("lm_head.weight", None)
    far = {"main": [abs(theirs[0] - formula[0]), distance(formula[2], theirs[2])]}
    parts = dict(sequences=sequences, mtp_loss_scaling_factor=FACTOR, main=told(theirs[:2], theirs[2], sorted(theirs[2])))
    if depths:
        theirs, formula = by_transformers(name, sequences, depths), by_formula(name, sequences, depths)
        copies = [(f"model.layers.{L + k}.{copy}", main) for k in range(depths) for copy, main in
                  (("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight"))]
        far["mtp"] = [abs(theirs[0] - formula[0]), distance(formula[2], theirs[2], copies)]
        parts["mtp"] = told(formula[:2], formula[2], sorted(formula[2]))
    write(os.path.join(TRUTH, name + ".gradients.json"), parts)
    print(name, {k: [float(f"{x:.2g}") for x in v] for k, v in far.items()})
    assert max(max(v) for v in far.values()) < 1e-12


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; none: all")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    for name in p.parse_args().names or NAMES:
        make(name)


if __name__ == "__main__":
    main()
