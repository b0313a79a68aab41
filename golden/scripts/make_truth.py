#!/usr/bin/env python3
"""Write golden/truth/: what forward.py (NumPy, float64) says about the checkpoints of golden/tiny/.

    make_truth.py [NAME ...]      NAME.safetensors (F64) and NAME.json; without a name also variants.{safetensors,json}
                                  and fp8-blocks.safetensors
    make_truth.py --check         compute logits, hidden rows and drafts again and compare with what is there: integers
                                  exactly, numbers to 1e-12 (the order of sums is the BLAS library's)

The tokens are random. Of a few token seeds the one is kept whose closest calls - a routed row, the target's own next
token, a draft - are farthest from a tie, so that an engine in float32 has no excuse to choose otherwise.
"""
import argparse
import json
import os
import platform
import sys

import numpy as np

import make_tiny
from forward import Model, dequantize, gap, read_safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
TINY, TRUTH = os.path.join(HERE, "..", "tiny"), os.path.join(HERE, "..", "truth")
METHODS = ("mtp-vanilla", "mtp-eagle")
K = 6
TOKEN_SEEDS, TOKEN_SEEDS_INDEXER, NOISY_RUNS = 24, 120, 10
CONTINUATION = 16

# (checkpoint, keys of config.json replaced, conventions replaced): the logits of the last row only, or, with an indexer, of
# the row that changes most
VARIANTS = {
    "v2-lite/mscale": ("v2-lite", dict(rope_scaling=dict(
        type="yarn", factor=4, original_max_position_embeddings=64, beta_fast=8, beta_slow=1, mscale=1.0,
        mscale_all_dim=0.707)), {}),
    "v2-lite/no-mscale-keys": ("v2-lite", dict(rope_scaling=dict(
        type="yarn", factor=4, original_max_position_embeddings=64)), {}),
    "v2-lite/factor-1": ("v2-lite", dict(rope_scaling=dict(
        type="yarn", factor=1, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0)), {}),
    "v2-lite/equal-ramp-ends": ("v2-lite", dict(rope_scaling=dict(
        type="yarn", factor=4, original_max_position_embeddings=64, beta_fast=32, beta_slow=12, mscale=0.707,
        mscale_all_dim=0.707)), {}),
    "v2-lite/no-yarn": ("v2-lite", dict(rope_scaling=None), {}),
    "v2-lite/norm-topk-prob": ("v2-lite", dict(norm_topk_prob=True, routed_scaling_factor=2.0), {}),
    "v3/no-norm-topk-prob": ("v3", dict(norm_topk_prob=False), {}),
    "v3/halves": ("v3", dict(rope_interleave=False), {}),
    "v3/group-mask-zero": ("v3", {}, dict(group_mask="zero")),
    "v3/rope-angle-f32": ("v3", {}, dict(rope_angle="f32")),
    "glm/halves": ("glm", dict(rope_interleave=False), {}),
    "glm/latent-eps-config": ("glm", {}, dict(latent_eps="config")),
    "mistral4/yarn-scale-always": ("mistral4", {}, dict(yarn_scale="always")),
    "moonlight/latent-eps-config": ("moonlight", {}, dict(latent_eps="config")),
}
# the same of models with an indexer
INDEXER_VARIANTS = {
    "v32/pairs": ("v32", {}, dict(indexer_rope="pairs")),
    "v32/pairs-by-key": ("v32", dict(indexer_rope_interleave=True), {}),
    "v32/fp8": ("v32", {}, dict(indexer_codes="fp8")),
    "v32/hadamard": ("v32", {}, dict(indexer_codes="hadamard")),
    "v32/no-codes": ("v32", {}, dict(indexer_codes="none")),
    "v32/bf16-weights": ("v32", {}, dict(indexer_weights="bf16")),
    "v32/bf16-scores": ("v32", {}, dict(indexer_scores="bf16")),
    "v32/highest": ("v32", {}, dict(indexer_ties="highest")),
    "v32/fp8-latents": ("v32", {}, dict(latent_cache="fp8")),
    "v32/topk-1": ("v32", dict(index_topk=1), {}),
    "v32/topk-all": ("v32", dict(index_topk=2048), {}),
    "v32/no-yarn": ("v32", dict(rope_scaling=None), {}),
    "glm5/halves": ("glm5", dict(indexer_rope_interleave=False), {}),
    "glm5/fp8": ("glm5", {}, dict(indexer_codes="fp8")),
    "glm5/no-codes": ("glm5", {}, dict(indexer_codes="none")),
    "glm5/highest": ("glm5", {}, dict(indexer_ties="highest")),
    "glm5/latent-eps-config": ("glm5", {}, dict(latent_eps="config")),
    "glm5/pattern": ("glm5", dict(index_topk_pattern="FSSS"), {}),
    "glm5/types": ("glm5", dict(indexer_types=["full", "shared", "shared", "shared"], index_topk_pattern="FFSS"), {}),
}


def write_f64(path, arrays, source="forward.py, float64"):
    kinds = {"f": "F64", "i": "I64"}
    make_tiny.write_safetensors(path, [(name, kinds[a.dtype.kind], a) for name, a in arrays.items()],
                                {"source": source})


def draft_margins(logits):
    return [float(gap(row, 1)) for row in logits]


def lengths(count):
    """prompt lengths at which drafts are recorded: shorter than K too, where no row of a deep module is final"""
    return sorted({1, 2, 3, 5, 8, 17, 33, count // 2, count - 1, count})


def forget(model):
    model.routes, model.sets = [], []


def closest_call(model):
    """the smallest margin of a routed row and of a chosen position; the margins of hundreds of positions are weighed"""
    return min([r[3] for r in model.routes] + [10 * s[3] for s in model.sets], default=np.inf)


def is_steady(model, tokens):
    """whether an indexer chooses the same positions when rounding moves some codes: there are too many to ask for a margin of each"""
    def sets():
        forget(model)
        logits, hidden, _ = model.target(tokens)
        arrays, _ = chosen_positions(model, tokens, hidden)
        return arrays
    exact, steady = sets(), True
    for seed in range(NOISY_RUNS):
        model.noise = np.random.default_rng(seed)
        noisy = sets()
        steady &= all(np.array_equal(exact[k], noisy[k]) for k in exact)
    model.noise = None
    return steady


def chosen_positions(model, tokens, hidden):
    """what the indexers choose: sets.L [rows, index_topk] for each full layer L, ascending, then -1; with the target's hidden rows also
    MTP module 0 over the prompt"""
    if model.modules and hidden is not None:
        model.module(0, tokens[1:], hidden[:-1])
    arrays = {}
    for layer in sorted({s[0] for s in model.sets}):
        rows = [s[2] for s in model.sets if s[0] == layer]
        arrays[f"sets.{layer}"] = np.array([[*r, *[-1] * (model.c["index_topk"] - len(r))] for r in rows], np.int64)
    equal = sum(np.count_nonzero(score == 0) > np.count_nonzero(score[places] == 0) > 0 for *_, places, _, score in model.sets)
    return arrays, dict(chosen_rows=sum(len(s[4]) > model.c["index_topk"] for s in model.sets), rows_with_equal_scores_at_the_border=int(equal),
                        smallest_set_margin=float(min(s[3] for s in model.sets)))


def tokens_for(model, name):
    """(seed, tokens, drafts): the seed of TOKEN_SEEDS whose smallest margin is largest"""
    c = model.c
    count, candidates = 80 if c["rope_scaling"] else 48, []
    for seed in range(TOKEN_SEEDS_INDEXER if c.get("index_topk") else TOKEN_SEEDS):
        tokens = np.random.default_rng([seed, make_tiny.SHAPES[name]["gen"]["seed"]]).integers(
            2, c["vocab_size"], count).tolist()
        forget(model)
        logits = model.target(tokens)[0]
        margin = min(closest_call(model), gap(logits[-1], 1) / 10)
        candidates.append((margin, seed, tokens))
    best = (-1.0,)
    for _, seed, tokens in sorted(candidates, reverse=True)[:16 if c.get("index_topk") else 4]:   # the best, now with greedy text and drafts
        if c.get("index_topk") and not is_steady(model, tokens):
            continue
        forget(model)
        margins = model.greedy(tokens, CONTINUATION)[1]
        if model.modules:
            for method in METHODS:
                margins += draft_margins(model.draft(tokens, method, K)[2])
        margin = min(closest_call(model), min(margins) / 10)
        best = max(best, (margin, seed, tokens))
    return best[1:]


def truth(name, seed, tokens):
    """(arrays, what goes into the JSON file) for one checkpoint and prompt"""
    model = Model(os.path.join(TINY, name))
    logits, hidden, _ = model.target(tokens)
    routes = model.routes[:]
    about_routes = dict(smallest_routing_margin=float(min(r[3] for r in routes))) if routes else {}
    arrays, about_sets = dict(tokens=np.array(tokens, np.int64), logits=logits, hidden=hidden), {}
    if model.c.get("index_topk"):
        more, about_sets = chosen_positions(model, tokens, hidden)
        arrays.update(more)
    told = dict(checkpoint=name, weights_seed=make_tiny.SHAPES[name]["gen"]["seed"], token_seed=seed, tokens=tokens,
                next=int(np.argmax(logits[-1])), next_margin=float(gap(logits[-1], 1)),
                smallest_margin_of_a_row=float(min(gap(row, 1) for row in logits)),
                **about_routes, **about_sets)
    told["greedy"], told["greedy_margins"] = model.greedy(tokens, CONTINUATION)
    if model.modules:
        told["drafts"] = []
        for n in lengths(len(tokens)):
            entry = dict(n=n)
            for method in METHODS:
                entry["next"], drafts, z, rows = model.draft(tokens[:n], method, K)
                entry[method] = dict(drafts=drafts, margins=draft_margins(z))
                if n == len(tokens):
                    arrays[method + ".logits"], arrays[method + ".hidden"] = z, rows
            told["drafts"].append(entry)
        told["accepted_of_3"] = {method: acceptance(model, tokens, told["greedy"], method) for method in METHODS}
        told["smallest_draft_margin"] = min(m for e in told["drafts"] for method in METHODS
                                            for m in e[method]["margins"])
    zero = Model(os.path.join(TINY, name), group_mask="zero")
    zero.target(tokens)
    told["routed_rows"] = len(routes)
    told["routed_otherwise_with_group_mask_zero"] = sum(a[2] != b[2] for a, b in zip(routes, zero.routes))
    told["versions"] = dict(numpy=np.__version__, python=platform.python_version())
    return arrays, told


def make(name):
    arrays, told = truth(name, *tokens_for(Model(os.path.join(TINY, name)), name))
    write_f64(os.path.join(TRUTH, name + ".safetensors"), arrays)
    write_compact(os.path.join(TRUTH, name + ".json"), told)
    print(f"{name}: next {told['next']}, routing margin {told.get('smallest_routing_margin', np.inf):.2g}, greedy margin "
          f"{min(told['greedy_margins']):.2g}, draft margin {told.get('smallest_draft_margin', np.inf):.2g}, "
          f"mask {told['routed_otherwise_with_group_mask_zero']}/{told['routed_rows']}, "
          f"accepted {told.get('accepted_of_3')}")


def integers(value):
    """a JSON value without its floating-point numbers and versions"""
    if isinstance(value, dict):
        return {k: integers(v) for k, v in value.items() if k != "versions"}
    if isinstance(value, list):
        return [integers(v) for v in value]
    return None if isinstance(value, float) else value


def check(name):
    """True if the files say what forward.py says now"""
    with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
        before = json.load(f)
    arrays, told = truth(name, before["token_seed"], before["tokens"])
    stored = {k: a for k, (_, a) in read_safetensors(os.path.join(TRUTH, name + ".safetensors")).items()}
    off = max(float(np.abs(arrays[k] - stored[k]).max() / np.abs(stored[k]).max()) for k in stored)
    good = integers(json.loads(json.dumps(told))) == integers(before) and arrays.keys() == stored.keys() and off < 1e-12
    print(f"{name}: {'equal' if good else 'DIFFERENT'}, numbers to {off:.1g}")
    return good


def acceptance(model, tokens, text, method):
    """accepted drafts of 3, for each of the positions of the greedy text where all three can be judged"""
    counts = []
    for j in range(len(text) - 3):
        drafts = model.draft(tokens + text[:j], method, 3)[1]
        counts.append(next((i for i in range(3) if drafts[i] != text[j + 1 + i]), 3))
    return counts


def write_compact(path, told):
    """one key a line"""
    with open(path, "w", encoding="utf-8") as f:
        lines = []
        for key, value in told.items():
            if key == "drafts":
                lines.append('"drafts": [\n  ' + ",\n  ".join(json.dumps(v) for v in value) + "]")
            else:
                lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
        f.write("{" + ",\n ".join(lines) + "}\n")


def variants(table, file):
    arrays, told = {}, {}
    for label, (name, overrides, conventions) in table.items():
        with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
            tokens = json.load(f)["tokens"]
        plain = Model(os.path.join(TINY, name)).target(tokens)[0]
        model = Model(os.path.join(TINY, name), overrides, **conventions)
        changed = model.target(tokens)[0]
        row = len(tokens) - 1 if table is VARIANTS else int(np.abs(changed - plain).max(axis=1).argmax())
        arrays[label] = changed[row]
        told[label] = dict(checkpoint=name, config=overrides,
                           conventions={k.replace("_", "-"): v for k, v in conventions.items()},
                           differs_by=float(np.abs(arrays[label] - plain[row]).max()))
        if table is not VARIANTS:
            told[label]["row"] = row
        print(f"{label}: differs from {name} by {told[label]['differs_by']:.2g}")
    write_f64(os.path.join(TRUTH, file + ".safetensors"), arrays)
    write_compact(os.path.join(TRUTH, file + ".json"), told)


def fp8_blocks():
    """a matrix whose grid of scales is 2 x 3 with partial edges (no dimension of the tiny models is so large), and
    the value of every code: `y` = fl32(e4m3 * scale) @ `x` in float64"""
    rng = np.random.default_rng(37)
    magnitude = np.exp2(rng.uniform(-6, 6, (2, 3)))
    w = rng.standard_normal((136, 264)) * np.kron(magnitude, np.ones((128, 128)))[:136, :264]
    w[:16, :16] = 0
    codes, scales = make_tiny.quantize_blocks(w.astype(np.float32))
    codes[:16, :16] = np.where(np.arange(256) & 0x7F == 0x7F, 0, np.arange(256)).reshape(16, 16)  # every code but NaN
    x = rng.standard_normal(264)
    path = os.path.join(TRUTH, "fp8-blocks.safetensors")
    tensors = [("x", "F64", x), ("w", "F8_E4M3", codes), ("w_scale_inv", "F32", scales)]
    make_tiny.write_safetensors(path, tensors, {})
    dequantized = dequantize(read_safetensors(path), [128, 128])["w"]
    make_tiny.write_safetensors(path, tensors + [("y", "F64", dequantized @ x), (
        "w_corner", "F32", dequantized[:16, :16].astype(np.float32))], {"source": "forward.py"}, padded=False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"of {', '.join(make_tiny.SHAPES)}; none: all, and the rest")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    if a.check:
        sys.exit(not all([check(name) for name in a.names or make_tiny.SHAPES]))
    os.makedirs(TRUTH, exist_ok=True)
    for name in a.names or make_tiny.SHAPES:
        make(name)
    if not a.names:
        variants(VARIANTS, "variants")
        variants(INDEXER_VARIANTS, "indexer-variants")
        fp8_blocks()


if __name__ == "__main__":
    main()
