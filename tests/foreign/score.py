#!/usr/bin/env python3
"""How well does `verbatim diff` find the faults of a backend that it does not know?

    score.py [--sample] [--only f32,bf16] [--bugs GLOB] [--clean N] [--hooks] [--ranks 1] [--log FILE] [--goals GOAL,...] [-v]
             [VERBATIM [OPTIONS OF DIFF]]

Runs the backend of this folder without a bug, and with each bug of bugs.py and bugs_inside.py, in the arithmetic of real engines, writes a
dump, and lets `verbatim diff` compare it with the model. Which tensor is the first wrong one, and in which rows, says the backend itself:
the same run with the bug and without it differ there first. Such a bug counts if it moves some row of that tensor by more than a quarter
of the RMS rounding of the tensor's dtype, also where nothing else is rounded; all others are invisible. diff gets the option --ranks if the engine has
several tensor-parallel ranks. Prints one line per arithmetic.
--goals f32:right=100,clean=0 ends with an error if fewer than 100 % of the bugs in f32 are named at the right tensor and row, or if a
clean run was called structural. Needs NumPy."""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

import bugs_indexer
import bugs_inside
from arithmetic import ORDERS, Arithmetic
from backend import Style, read_config
from bugs import BUGS, Bug, applicable
from files import hooked, read_checkpoint, write_dump, write_hooks
from schedule import Plan, Run

assert bugs_inside.bug and bugs_indexer.bug  # imported because they add their bugs to BUGS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "golden" / "tiny"
MODELS = {
    "f32": ["v3-mtp3", "v3", "v2", "v2-lite", "moonlight", "glm"],
    "bf16": ["v3-mtp3", "glm", "moonlight", "v2-lite"],
    "f16": ["v2", "v2-lite", "v3-mtp3"],
    "tf32": ["v3-mtp3", "v3", "v2", "moonlight", "glm"],
    "fp8": ["v3"],
}
# Models with sparse attention, for the bugs of bugs_indexer.py and for clean runs of their own.
SPARSE = ["glm5", "v32"]
# The docs have no name for TF32; F16 has as many bits.
OPTIONS = {"tf32": ["--arithmetic", "f16"]}
SHORT = ["norm-one-plus-weight", "rope-halves", "scale-of-nope-part", "cache-row-of-rejected-draft-not-overwritten", "experts-swapped",
         "mtp-concat-swapped", "router-biased-weights", "nan-row-in-decoding", "indexer-rope-pairs-and-halves-swapped", "indexer-without-relu"]
checkpoints = {}


def checkpoint(model):
    if model not in checkpoints:
        checkpoints[model] = read_checkpoint(TINY / model)
    return checkpoints[model]


def draw(arithmetic, seed, model=None, ranks=2):
    """A model, a prompt with its schedule, and an engine's style. ranks: at most so many tensor-parallel ranks."""
    rng = np.random.default_rng([seed, *arithmetic.encode()])
    model = model or str(rng.choice(MODELS[arithmetic]))
    chunks = [(6, 5, 3), (9, 4), (5, 5), (4, 4, 4), (7, 6, 5), (12,)][rng.integers(6)]
    accepts = [int(a) for a in rng.permutation([0, 1, 2, 0, 1])]
    plan = Plan(checkpoint(model)[0]["vocab_size"], seed, sum(chunks), chunks, 2, accepts)
    narrow = arithmetic not in ("f32", "tf32")
    coin = lambda: bool(rng.integers(2))
    style = Style(absorbed=coin(), flash=coin(), fused_moe=coin(), moe_sum="dtype" if coin() else "f32", norm_twice=coin(),
                  rope_dtype=coin() and narrow, silu_rounded=coin(), ranks=1 + int(rng.integers(2)) % ranks, halves=coin())
    return model, plan, Arithmetic(arithmetic, ORDERS[rng.integers(len(ORDERS))]), style


# ---- the truth ----
LAST = """embed_tokens.output hnorm.input enorm.output hnorm.output eh_proj.input eh_proj.output input_layernorm.input
input_layernorm.output q_a_proj.output q_a_layernorm.output q_b_proj.output q_proj.output kv_a_proj_with_mqa.output q_rope
kv_a_layernorm.output k_rope indexer.wk.output indexer.k_norm.output indexer.k indexer.wq_b.output indexer.weights_proj.output
indexer.q indexer.weights indexer.kept o_proj.input o_proj.output post_attention_layernorm.input post_attention_layernorm.output gate.output
gate.scores gate.choice gate.group_scores gate.groups gate.experts gate.weights""".split()
AFTER = ["shared_experts.output", "mlp.output", "output", "model.norm.input", "shared_head.norm.input", "model.norm.output",
         "shared_head.norm.output", "lm_head.output", "shared_head.head.output"]


def order(name, layer, depth):
    """Where a value comes in the computation."""
    if name == "model.embed_tokens.output":
        layer = -1
    place = next((i for i, end in enumerate(LAST) if name.endswith("." + end)), None)
    if re.search(r"\.experts\.\d+\.output$", name):
        place = len(LAST) + int(name.split(".")[-2]) / 1000
    if place is None:
        place = len(LAST) + 1 + next(i for i, end in reversed(list(enumerate(AFTER))) if name == end or name.endswith("." + end))
    return (-1 if depth is None else depth, 10**6 if layer is None else layer, place)


def by_name(taps, shown=lambda t: True):
    """name -> (sort key, tap, index -> row of numbers before they were rounded), rows of the text alone"""
    names = {}
    for t in taps:
        if shown(t):
            rows = names.setdefault(t.name, (order(t.name, t.layer, t.depth), t, {}))[2]
            rows.update({row.index: t.raw[i] for i, row in enumerate(t.rows) if row.final})
    return names


def moved(a, b, dtype, arithmetic):
    """What a bug moves a row by, in RMS roundings of its dtype."""
    if a is None or b is None or a.shape != b.shape:
        return np.inf
    if dtype == "I32":
        return 0 if np.array_equal(a, b) else np.inf
    bits = {"BF16": 8, "F16": 11}.get(dtype, 11 if arithmetic == "tf32" else 24)
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(a), 2.0**-24))) + 1 - bits)
    ratio = np.sqrt(np.mean((a - b) ** 2)) / np.sqrt(np.mean(ulp**2) / 12)
    return ratio if np.isfinite(ratio) else np.inf


def truth(clean, buggy, arithmetic):
    """The first wrong tensor, its wrong rows, and by how much. A tensor that only one of the two has is not wrong itself."""
    for name, (_, tap, rows) in sorted(clean.items(), key=lambda item: item[1][0]):
        if name not in buggy:
            continue
        theirs = buggy[name][2]
        wrong = {}
        for index in rows.keys() | theirs.keys():
            a, b = rows.get(index), theirs.get(index)
            if a is None or b is None:
                if ".experts." in name:
                    wrong[index] = np.inf
            elif a.shape != b.shape or not np.array_equal(a, b):
                wrong[index] = moved(a, b, tap.dtype, arithmetic)
        if wrong:
            return name, wrong, max(wrong.values())
    return None, {}, 0


# ---- what diff says ----
def named(report):
    """The tensor and the row that a user reads first: of the first operator that is wrong or biased on its own inputs, else of the first
    structural difference, else of the first bias. None if nothing is wrong."""
    first = report.get("first_structural") or report.get("first_biased") or {}
    local = report.get("local_a") or {}
    if local.get("wrong") or local.get("biased"):
        first = next(o for o in local["operators"] if o["tap"] == local["first"] and o["verdict"] in ("structural", "biased"))
    if report["verdict"] not in ("structural", "biased") or not first:
        return None
    index = (first.get("bias" if first.get("verdict") == "biased" else "at") or {}).get("index")
    if index is None:
        found = re.search(r"index (\d+)", first.get("why") or "")
        index = int(found.group(1)) if found else None
    return first["tap"], index, first.get("why")


class Scorer:
    def __init__(self, verbatim, options, hooks, ranks, folder):
        self.verbatim, self.options, self.hooks, self.ranks, self.folder = verbatim, options, hooks, ranks, pathlib.Path(folder)
        self.clean_runs = {}

    def diff(self, run, model, arithmetic):
        path = self.folder / "dump.safetensors"
        command = [self.verbatim, "diff", path, TINY / model, "--json"] + OPTIONS.get(arithmetic, [])
        if run.be.s.ranks > 1:
            command += ["--ranks", run.be.s.ranks]
        if self.hooks:
            write_hooks(path, run.be.taps, run.tokens)
            path.with_suffix(".jsonl").unlink(missing_ok=True)
            command += ["--names", "hf", "--tokens", ",".join(map(str, run.tokens))]
        else:
            write_dump(path, run.be.taps)
        done = subprocess.run([str(word) for word in command] + self.options, capture_output=True, text=True, timeout=300)
        if done.returncode not in (0, 3):
            return {"verdict": "error", "error": done.stderr.strip()}
        return json.loads(done.stdout)

    def run(self, seed, arithmetic, model=None, bug=None, exact=False):
        """exact: the same in f32"""
        model, plan, a, style = draw(arithmetic, seed, model, self.ranks)
        if exact:
            a, style.rope_dtype = Arithmetic("f32", a.order), False
        style.all_logits = style.all_logits or self.hooks
        config = read_config(checkpoint(model)[0], {})
        planted = Bug(bug, config, seed, plan) if bug else None
        run = Run(plan, checkpoint(model), a, style, planted, seed)
        with np.errstate(invalid="ignore"):
            run.go()
        return run, model

    def clean(self, seed, arithmetic, model=None):
        """The values of a clean run, as the dump shows them."""
        key = seed, arithmetic, model
        if key not in self.clean_runs:
            shown = (lambda t: t.depth is None and hooked(t.name)) if self.hooks else (lambda t: True)
            self.clean_runs[key] = by_name(self.run(seed, arithmetic, model)[0].be.taps, shown)
        return self.clean_runs[key]

    def effect(self, seed, arithmetic, model, bug, tensor):
        """What the bug moves the rows of a tensor by, without the noise that rounding adds inside of an operator: from runs in f32."""
        clean, buggy = (by_name(self.run(seed, arithmetic, model, b, exact=True)[0].be.taps).get(tensor) for b in (None, bug))
        if clean is None or buggy is None:
            return np.inf
        dtype = self.clean(seed, arithmetic, model)[tensor][1].dtype
        a, b = clean[2], buggy[2]
        return max(moved(a.get(i), b.get(i), dtype, arithmetic) for i in a.keys() | b.keys())

    def score_clean(self, seed, arithmetic, model=None):
        run, model = self.run(seed, arithmetic, model)
        report = self.diff(run, model, arithmetic)
        return {"bug": None, "arithmetic": arithmetic, "model": model, "seed": seed, "ranks": run.be.s.ranks, "verdict": report["verdict"],
                "named": named(report), "error": report.get("error")}

    def score_bug(self, bug, arithmetic):
        """One bug in one arithmetic; other seeds are tried while it is invisible."""
        models = [m for m in (SPARSE if bug.startswith("indexer-") else MODELS[arithmetic]) if applicable(bug, read_config(checkpoint(m)[0], {}), arithmetic)]
        result = {"bug": bug, "arithmetic": arithmetic, "outcome": "not applicable"}
        if not models:
            return result
        for seed in range(3):
            model = models[(seed + len(bug)) % len(models)]
            run, _ = self.run(seed, arithmetic, model, bug)
            tensor, rows, ratio = truth(self.clean(seed, arithmetic, model), by_name(run.be.taps), arithmetic)
            if ratio > 0.25 and arithmetic != "f32":
                ratio = min(ratio, self.effect(seed, arithmetic, model, bug, tensor))
            if ratio > 0.25:
                break
        wrong = sorted(i for i in rows if rows[i] > 0.25)
        result.update(model=model, seed=seed, tensor=tensor, rows=wrong, moved=round(float(min(ratio, 1e9)), 2))
        if ratio <= 0.25:
            result["outcome"] = "invisible"
            return result
        report = self.diff(run, model, arithmetic)
        at = named(report)
        result.update(verdict=report["verdict"], named=at, error=report.get("error"))
        if at is None:
            result["outcome"] = "unseen"
        elif at[0] != tensor:
            result["outcome"] = "elsewhere"
        else:  # a wrong shape has no row
            whole = at[1] is None and len(rows) == len(self.clean(seed, arithmetic, model)[tensor][2])
            result["outcome"] = "right" if whole or at[1] in result["rows"] else "row"
        return result


# ---- the table ----
COLUMNS = ["right", "row", "elsewhere", "unseen", "invisible"]


def summary(results, arithmetic):
    mine = [r for r in results if r["arithmetic"] == arithmetic]
    clean = [r["verdict"] for r in mine if r["bug"] is None]
    count = {c: sum(r.get("outcome") == c for r in mine) for c in COLUMNS}
    count["bugs"] = sum(count.values()) - count["invisible"]
    count["clean"], count["alarms"] = len(clean), sum(v not in ("identical", "rounding", "tie-flip") for v in clean)
    count["ties"] = clean.count("tie-flip")
    return count


def table(results, arithmetics):
    head = ["bugs that count", "right tensor and row", "right tensor, other row", "elsewhere", "not seen", "invisible", "clean runs",
            "false alarms", "tie-flips"]
    keys = ["bugs", "right", "row", "elsewhere", "unseen", "invisible", "clean", "alarms", "ties"]
    print("| arithmetic | " + " | ".join(head) + " |\n|---" * 1 + "|---" * len(head) + "|")
    for a in arithmetics:
        count = summary(results, a)
        print(f"| {a} | " + " | ".join(str(count[k]) for k in keys) + " |")


def missed(results, goals):
    """The goals that were not reached: f32:right=100 (per cent of the bugs that count), clean=0 (false alarms, in every arithmetic)."""
    lines = []
    for goal in filter(None, goals.split(",")):
        what, wanted = goal.split("=")
        if what == "clean":
            alarms = sum(summary(results, a)["alarms"] for a in MODELS)
            if alarms > int(wanted):
                lines.append(f"{alarms} false alarms in clean runs, at most {wanted} were expected")
            continue
        arithmetic, column = what.split(":")
        count = summary(results, arithmetic)
        share = 100 * count[column] / max(count["bugs"], 1)
        if share < float(wanted):
            lines.append(f"{arithmetic}: {share:.1f} % of the bugs are '{column}', at least {wanted} % were expected")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verbatim", nargs="?", default=str(ROOT / "build" / "verbatim"))
    p.add_argument("--sample", action="store_true", help="a few clean runs and bugs")
    p.add_argument("--only", default=",".join(MODELS), help="arithmetics")
    p.add_argument("--bugs", default="*", help="names that match this pattern")
    p.add_argument("--clean", type=int, default=10, help="clean runs of each arithmetic")
    p.add_argument("--hooks", action="store_true", help="dumps without a manifest, with module names")
    p.add_argument("--ranks", type=int, default=2, choices=[1, 2], help="1: no engine of two tensor-parallel ranks")
    p.add_argument("--log", help="a JSON line for each run")
    p.add_argument("--goals", default="")
    p.add_argument("-v", "--verbose", action="store_true", help="a line for each bug that is not named at the right tensor and row")
    args, options = p.parse_known_args()
    arithmetics = args.only.split(",")
    names = [n for n in BUGS if fnmatch.fnmatch(n, args.bugs) and (not args.sample or n in SHORT)]
    if args.hooks:
        names = [n for n in names if not n.startswith("mtp-") and n != "rope-positions-one-late"]  # only q_rope and k_rope see it
    results = []
    with tempfile.TemporaryDirectory() as folder:
        scorer = Scorer(args.verbatim, options, args.hooks, args.ranks, folder)
        for a in arithmetics:
            results += [scorer.score_clean(seed, a) for seed in range(2 if args.sample else args.clean)]
            results += [scorer.score_clean(seed, a, SPARSE[seed % 2]) for seed in range(1 if args.sample else args.clean)]
            results += [scorer.score_bug(name, a) for name in names]
            scorer.clean_runs.clear()
    if args.log:
        pathlib.Path(args.log).write_text("".join(json.dumps(r) + "\n" for r in results))
    if args.verbose:
        for r in results:
            if r.get("outcome") in COLUMNS[1:] or r["bug"] is None and r["verdict"] not in ("identical", "rounding"):
                print(json.dumps(r))
    table(results, arithmetics)
    lines = missed(results, args.goals)
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
