"""Text from an exported checkpoint, and how much drafting is worth, measured in PyTorch in f32.

    python sample.py --model ../../golden/tale                          # one tale
    python sample.py --model ../../golden/tale --acceptance             # table over prompts.jsonl
    python sample.py --model ../../golden/tale --make-prompts 20        # write prompts.jsonl from the held-out tales

Drafts follow the definition, not an engine's caches: for every round all rows of every module are computed anew.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Config, Model, rope_table
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
def generate(model, prompt, n, temperature, generator, rope):
    """prompt (ids) -> prompt and at most n new ids; the target's hidden rows of all but the last (KV cache inside)."""
    ids, past = list(prompt), [None] * len(model.layers)
    rows = [model.hidden(torch.tensor([ids]), tuple(t[:len(ids)] for t in rope), torch.float32, past)[0]]
    for _ in range(n):
        z = model.logits(rows[-1][-1])
        p = F.softmax(z / temperature, -1) if temperature else None
        ids.append(torch.multinomial(p, 1, generator=generator).item() if temperature else z.argmax().item())
        if ids[-1] == EOS_ID:
            break
        at = len(ids) - 1
        rows.append(model.hidden(torch.tensor([ids[-1:]]), tuple(t[at:at + 1] for t in rope), torch.float32, past)[0])
    return ids, torch.cat(rows)


@torch.no_grad()
def vanilla(model, tok, hidden, rope, K):
    """Drafts after tok[0..N], hidden rows 0..N-1: module k's row N-1 proposes tok[N+k+1]."""
    N, tok, h = len(tok) - 1, list(tok), hidden[None]
    for k in range(K):
        emb = model.embed(torch.tensor([tok[k + 1:k + 1 + N]]))
        h, _ = model.mtp[k](emb, h, tuple(t[:N] for t in rope), torch.float32)
        tok.append(model.logits(h[0, -1]).argmax().item())
    return tok[N + 1:]


@torch.no_grad()
def eagle(model, tok, hidden, rope, K):
    """Module 0 again and again: draft j+1 takes (its own g of the previous row, d_j) as the next row, position N-1+j."""
    N, drafts = len(tok) - 1, []
    g, kv = model.mtp[0](model.embed(torch.tensor([tok[1:]])), hidden[None], tuple(t[:N] for t in rope), torch.float32)
    past, g = [kv], g[:, -1:]
    for j in range(K):
        drafts.append(model.logits(g[0, -1]).argmax().item())
        if j + 1 < K:
            at = N + j
            g, kv = model.mtp[0](model.embed(torch.tensor([[drafts[-1]]])), g, tuple(t[at:at + 1] for t in rope),
                                 torch.float32, past)
            past.append(kv)
    return drafts


def acceptance(model, prompts, n, temperature, method, rope, K):
    """tokens per forward, share of rounds in which depth 1..K was reached and right, share of repeated 8-grams."""
    generator = torch.Generator().manual_seed(0)
    rounds, emitted, right, repeated, grams = 0, 0, [0] * K, 0, 0
    for prompt in prompts:
        ids, hidden = generate(model, prompt, n, temperature, generator, rope)
        N = len(prompt)                            # the prompt's own pass gave tok[N]
        emitted += len(ids) - 1 - N
        while N < len(ids) - 1:
            rounds += 1
            drafts = method(model, ids[:N + 1], hidden[:N], rope, min(K, len(ids) - 2 - N) or 1)
            m = 0
            while m < len(drafts) and N + 1 + m < len(ids) - 1 and drafts[m] == ids[N + 1 + m]:
                right[m] += 1
                m += 1
            N += m + 1
        seen = [tuple(ids[i:i + 8]) for i in range(len(prompt), len(ids) - 7)]
        grams += len(seen)
        repeated += len(seen) - len(set(seen))
    return {"tokens_per_forward": round(emitted / rounds, 3),
            "accepted_by_depth": [round(r / rounds, 3) for r in right],
            "repeated_8grams": round(repeated / max(grams, 1), 3)}


def make_prompts(path, heldout, count, tokenizer):
    """From document 1, 3, 5, ... (then 2, 4, ...) of the held-out tales, the second paragraph of at least 300 characters,
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
        ids, _ = generate(model, prompt, a.n, a.temperature, torch.Generator().manual_seed(a.seed), rope)
        return print(tok.decode(ids))
    with open(os.path.join(a.model, "prompts.jsonl")) as f:
        prompts = [[BOS_ID] + tok.encode(json.loads(line)["prompt"]).ids for line in f][:a.prompts]
    for temperature in (0.0, 1.0):
        for method in (vanilla, eagle):
            row = acceptance(model, prompts, a.n, temperature, method, rope, len(model.mtp))
            print(json.dumps({"method": "mtp-" + method.__name__, "temperature": temperature} | row), flush=True)


if __name__ == "__main__":
    main()
