#!/usr/bin/env python3
"""How often does `verbatim conventions --against` find the conventions that a foreign dump follows?

    score_conventions.py [--only f32,bf16] [--bug NAME] [--goals f32=10,bf16=10] [-v] [VERBATIM [OPTIONS OF CONVENTIONS]]

Ten engines of this folder follow other conventions. One is found if the command names the values that the engine chose, and no other,
for every convention that the engine's dump depends on. --bug plants a bug beside the conventions. Needs NumPy."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import score  # first of all: it says where to import from

ENGINES = [
    ("v3-mtp3", {}),
    ("v3-mtp3", {"draft-hidden": "pre-norm", "first-embedding": "zeroed"}),
    ("v3-mtp3", {"main-hidden": "pre-norm", "draft-hidden": "pre-norm", "draft-position": "token"}),
    ("v3-mtp3", {"concat": "hidden-embedding"}),
    ("glm", {"latent-eps": "config"}),
    ("moonlight", {"latent-eps": "config", "gate": "bf16"}),
    ("v3", {"group-mask": "zero"}),
    ("v3", {"draft-position": "token", "gate": "bf16"}),
    ("v3", {"yarn": "max-len", "concat": "hidden-embedding"}),
    ("glm", {"main-hidden": "pre-norm", "concat": "hidden-embedding", "latent-eps": "config"}),
]


def found(report):
    """The conventions that the command found, those with the default value left out."""
    text = report.get("conventions")
    if isinstance(text, dict):
        return dict(text)
    return dict(pair.split("=") for pair in filter(None, (text or "").split(",")) if pair != "defaults")


def ask(number, arithmetic, args, options, folder):
    model, wanted = ENGINES[number]
    _, plan, a, style = score.draw(arithmetic, 100 + number, model)
    style.conventions = dict(wanted)
    bug = score.Bug(args.bug, score.read_config(score.checkpoint(model)[0], {}), number, plan) if args.bug else None
    run = score.Run(plan, score.checkpoint(model), a, style, bug, number)
    path = pathlib.Path(folder) / "dump.safetensors"
    score.write_dump(path, run.go())
    command = [args.verbatim, "conventions", score.TINY / model, "--against", path, "--json"]
    done = subprocess.run(command + options, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):
        return wanted, None, done.stderr.strip() or done.stdout.strip()
    report = json.loads(done.stdout)
    return wanted, found(report), (report.get("verdict"), report.get("first"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verbatim", nargs="?", default=str(score.ROOT / "build" / "verbatim"))
    p.add_argument("--only", default="f32,bf16")
    p.add_argument("--bug")
    p.add_argument("--goals", default="")
    p.add_argument("-v", "--verbose", action="store_true")
    args, options = p.parse_known_args()
    goals = dict(goal.split("=") for goal in filter(None, args.goals.split(",")))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for arithmetic in args.only.split(","):
            right = 0
            for number in range(len(ENGINES)):
                wanted, got, verdict = ask(number, arithmetic, args, options, folder)
                right += wanted == got
                if args.verbose and wanted != got:
                    print(arithmetic, ENGINES[number][0], "follows", wanted or "the defaults", "found", got, verdict)
            print(f"{arithmetic}: {right} of {len(ENGINES)} lists of conventions found")
            failed |= right < int(goals.get(arithmetic, 0))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
