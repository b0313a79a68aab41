"""Text from an exported checkpoint, and how much drafting is worth, measured in PyTorch in f32.

    python sample.py --model ../../golden/tale                          # one tale
    python sample.py --model ../../golden/tale --acceptance             # table over prompts.jsonl
    python sample.py --model ../../golden/tale --make-prompts 20        # write prompts.jsonl from the held-out tales

Drafting never changes the text, so the text is made first; then the drafts of all its possible rounds are computed at
once, and the rounds counted. Three modules, three drafts.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Config, Model, rope_table
from losses import self_fed_masks
from tokenizer import BOS_ID, EOS_ID, documents


def load(path):
    """The inverse of export.py."""
    with open(os.path.join(path, "config.json")) as f:
        raw = json.load(f)
    cfg = Config(**{k: raw[k] for k in Config.__dataclass_fields__})
    model, stored, state = Model(cfg), load_file(os.path.join(path, "model.safetensors")), {}
    for name, want in model.state_dict().items():
        head, _, tail = name.partition(".")
        if head == "mtp":
            k, _, rest = tail.partition(".")
            rest = "shared_head.norm.weight" if rest == "norm.weight" else rest.removeprefix("layer.")
            name_hf = f"model.layers.{cfg.num_hidden_layers + int(k)}.{rest}"
        else:
            name_hf = name if head == "lm_head" else "model." + name
        name_hf = name_hf.replace("mlp.e_score", "mlp.gate.e_score")
        if want.dim() == 3:
            base, _, matrix = name_hf.rpartition(".")
            state[name] = torch.stack([stored[f"{base}.experts.{e}.{matrix}.weight"] for e in range(want.shape[0])])
        else:
            state[name] = stored[name_hf if name_hf in stored else name_hf + ".weight"]
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model.eval()


@torch.no_grad()
def generate(model, prompts, n, temperature, generator, rope):
    """Prompts (lists of ids) -> per prompt ids with at most n new ones, and the target's hidden states of all but the last.

    All run as one batch from the shortest prompt's end on; a longer prompt's own ids are forced."""
    at = min(map(len, prompts))
    ids = torch.tensor([p[:at] for p in prompts])
    past = [None] * len(model.layers)
    rows = [model.hidden(ids, tuple(t[:at] for t in rope), torch.float32, past)]
    for at in range(at, max(map(len, prompts)) + n):
        z = model.logits(rows[-1][:, -1])
        new = torch.multinomial(F.softmax(z / temperature, -1), 1, generator=generator)[:, 0] if temperature else z.argmax(-1)
        new = torch.tensor([p[at] if at < len(p) else t for p, t in zip(prompts, new.tolist())])
        ids = torch.cat((ids, new[:, None]), 1)
        rows.append(model.hidden(new[:, None], tuple(t[at:at + 1] for t in rope), torch.float32, past))
    hidden, out = torch.cat(rows, 1), []
    for b, p in enumerate(prompts):
        text = ids[b, :len(p) + n].tolist()
        if EOS_ID in text[len(p):]:
            text = text[:text.index(EOS_ID, len(p)) + 1]
        out.append((text, hidden[b, :len(text) - 1]))
    return out


class Streams:
    """One module run over all rows at once, as often as a draft needs: rows that are final, then rows made of drafts."""

    def __init__(self, model, rope, rows):
        self.model, self.rope = model, tuple(t[:rows] for t in rope)
        self.masks = (None,) + self_fed_masks(rows)

    def run(self, module, tokens, h, past=()):
        g, kv = module(self.model.embed(tokens)[None], h[None], self.rope, torch.float32, past, self.masks[len(past)])
        return g[0], kv

    def best(self, g):
        return self.model.logits(g).argmax(-1)


def later(x, by):
    """Row i of x -> row i+by (zeros come in front); by < 0: rows come earlier, zeros behind."""
    zeros = torch.zeros_like(x[:abs(by)])
    return torch.cat((zeros, x[:-by]) if by > 0 else (x[-by:], zeros))


@torch.no_grad()
def vanilla(model, ids, hidden, rope):
    """Three drafts of every possible round: row i = N-1 knows tok[0..N]. Returns d1, d2, d3 [M], M = len(ids) - 1.

    Module 1's row i reads d1; its earlier rows are final. Module 2's row i reads d2, its row i-1 reads d1 (not final in
    this round), its earlier rows are final: the same two masks as in training."""
    M, tok = len(ids) - 1, torch.tensor(ids)
    s, (m0, m1, m2) = Streams(model, rope, M), model.mtp
    g0, _ = s.run(m0, tok[1:], hidden)
    d1 = s.best(g0)
    g1, final1 = s.run(m1, later(tok[1:], -1), g0)
    g1_draft, _ = s.run(m1, d1, g0, [final1])
    d2 = s.best(g1_draft)
    _, final2 = s.run(m2, later(tok[1:], -2), g1)
    _, newest = s.run(m2, later(d1, -1), g1, [final2])
    g2, _ = s.run(m2, d2, g1_draft, [final2, newest])
    return d1, d2, s.best(g2)


@torch.no_grad()
def eagle(model, ids, hidden, rope):
    """The same with module 0 alone: draft j+1 takes (its own g of the previous row, d_j) as the next row."""
    M = len(ids) - 1
    s, module = Streams(model, rope, M + 2), model.mtp[0]
    pad = lambda x: torch.cat((x, torch.zeros_like(x[:1]), torch.zeros_like(x[:1])))
    g, kv = s.run(module, pad(torch.tensor(ids[1:])), pad(hidden))
    d1 = s.best(g)
    g, kv2 = s.run(module, later(d1, 1), later(g, 1), [kv])
    d2 = s.best(g)                                                           # of the round one row earlier
    g, _ = s.run(module, later(d2, 1), later(g, 1), [kv, kv2])
    return d1[:M], d2[1:M + 1], s.best(g)[2:]


def acceptance(drafts, texts, prompts, K=3):
    """drafts: per text the K drafts of every row. Rounds as the engine counts them: the prompt's own pass gives the first
    token; a round drafts at most what is left less one, accepts the longest right prefix and emits one token more."""
    rounds, emitted, right, repeated, grams = 0, 0, [0] * K, 0, 0
    for d, ids, prompt in zip(drafts, texts, prompts):
        N, last = len(prompt), len(ids) - 1
        emitted += last - N
        while N < last:
            m = 0
            while m < min(K, last - N - 1) and d[m][N - 1] == ids[N + 1 + m]:
                right[m] += 1
                m += 1
            rounds, N = rounds + 1, N + m + 1
        seen = [tuple(ids[i:i + 8]) for i in range(len(prompt), len(ids) - 7)]
        grams += len(seen)
        repeated += len(seen) - len(set(seen))
    return {"tokens_per_forward": round(emitted / rounds, 3),
            "accepted_by_depth": [round(r / rounds, 3) for r in right],
            "repeated_8grams": round(repeated / max(grams, 1), 3)}


def make_prompts(path, heldout, count, tokenizer):
    """From document 1, 3, 5, ... (then 0, 2, 4, ...) of the held-out tales, the second paragraph of at least 300 characters,
    cut at the last space before character 240."""
    docs = documents(heldout)
    order = list(range(1, len(docs), 2)) + list(range(0, len(docs), 2))
    prompts = []
    for i in order:
        long = [p for p in docs[i].split("\n\n") if len(p) >= 300]
        if len(long) >= 2 and len(prompts) < count:
            prompts.append(long[1][:long[1].rindex(" ", 0, 240)])
    with open(os.path.join(path, "prompts.jsonl"), "w") as f:
        f.writelines(json.dumps({"prompt": p}) + "\n" for p in prompts)
    print(len(prompts), "prompts,", [len(tokenizer.encode(p).ids) for p in prompts], "tokens")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", required=True)
    p.add_argument("--corpus", default=os.path.join(here, "../../../shared/assets/corpus"))
    p.add_argument("--prompt", default="Once upon a time there was")
    p.add_argument("-n", type=int, default=128)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--make-prompts", type=int, default=0)
    p.add_argument("--acceptance", action="store_true")
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    tok = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    if a.make_prompts:
        return make_prompts(a.model, os.path.join(a.corpus, "tales.heldout.txt"), a.make_prompts, tok)
    model = load(a.model)
    rope = rope_table(model.cfg, model.cfg.max_position_embeddings)
    if not a.acceptance:
        prompt = [BOS_ID] + tok.encode(a.prompt).ids
        text, _ = generate(model, [prompt], a.n, a.temperature, torch.Generator().manual_seed(a.seed), rope)[0]
        return print(tok.decode(text))
    with open(os.path.join(a.model, "prompts.jsonl")) as f:
        prompts = [[BOS_ID] + tok.encode(json.loads(line)["prompt"]).ids for line in f][:a.prompts]
    for temperature in (0.0, 1.0):
        out = generate(model, prompts, a.n, temperature, torch.Generator().manual_seed(a.seed), rope)
        texts = [ids for ids, _ in out]
        for method in (vanilla, eagle):
            drafts = [[d.tolist() for d in method(model, ids, hidden, rope)] for ids, hidden in out]
            print(json.dumps({"method": "mtp-" + method.__name__, "temperature": temperature}
                             | acceptance(drafts, texts, prompts)), flush=True)


if __name__ == "__main__":
    main()
