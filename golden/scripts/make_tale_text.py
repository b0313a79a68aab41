#!/usr/bin/env python3
"""Write text of golden/tale's own, on which its parallel heads are trained.

    make_tale_text.py VERBATIM DIR [--sequences N]      writes DIR/text.jsonl

As tools/train/own.py: each sequence begins with BOS and OPENING tokens drawn at temperature 1, with the sequence's number as the seed; from
there on the most likely token is taken, as when drafting is measured. No text of the corpus is read. The same text on every machine.
"""
import argparse
import json
import os
import subprocess

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tale")
OPENING, REST = 40, 152


def generate(verbatim, folder, name, prompts, model=MODEL, threads=1):
    """the answers' tokens, by id"""
    asked, answers = (os.path.join(folder, f"{name}.{kind}.jsonl") for kind in ("prompts", "answers"))
    with open(asked, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(p) + "\n" for p in prompts)
    subprocess.run([verbatim, "generate", model, "--prompts", asked, "-o", answers, "--max-sequences", "32", "--threads", str(threads)], check=True)
    with open(answers, encoding="utf-8") as f:
        return {line["id"]: line["tokens"] for line in map(json.loads, f)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verbatim")
    p.add_argument("dir")
    p.add_argument("--sequences", type=int, default=1200)
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    opened = generate(a.verbatim, a.dir, "opening", [dict(id=i, tokens=[0], max_tokens=OPENING, temperature=1, seed=i) for i in range(a.sequences)])
    opened = {i: [0] + t for i, t in sorted(opened.items())}
    told = generate(a.verbatim, a.dir, "rest", [dict(id=i, tokens=t, max_tokens=REST, temperature=0) for i, t in opened.items()])
    with open(os.path.join(a.dir, "text.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(dict(tokens=t + told[i])) + "\n" for i, t in opened.items())


if __name__ == "__main__":
    main()
