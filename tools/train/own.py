"""Text of a model's own, for training its MTP modules on what they will draft. Needs `make`, not PyTorch.

    python own.py --model MODEL --work WORKDIR         # writes WORKDIR/own.npy, which train.py --own reads

Each sequence begins with BOS and --opening tokens drawn at temperature 1. From there on the most likely token is taken, as
when drafting is measured. Sequences that end early are left out. No text of the corpus is read.
"""
import argparse
import json
import os
import subprocess
import tempfile

import numpy as np

AT_ONCE = 256


def continued(verbatim, model, threads, requests):
    """Prompts and answers, as ids, of the requests whose answers have all tokens that were asked for."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answers = (os.path.join(folder, name) for name in ("asked.jsonl", "answers.jsonl"))
        with open(asked, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"id": i, **r}) + "\n" for i, r in enumerate(requests))
        subprocess.run([verbatim, "generate", model, "--prompts", asked, "-o", answers, "--max-sequences", "32", "--threads", str(threads)],
                       check=True, stdout=subprocess.DEVNULL)
        with open(answers, encoding="utf-8") as f:
            told = {line["id"]: line["tokens"] for line in map(json.loads, f)}
    return [r["tokens"] + told[i] for i, r in enumerate(requests) if len(told[i]) == r["max_tokens"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--verbatim", default=os.path.join(here, "../../build/verbatim"))
    p.add_argument("--sequences", type=int, default=2048)
    p.add_argument("--rows", type=int, default=256, help="per sequence")
    p.add_argument("--opening", type=int, default=60)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    rest, kept, tried = a.rows + config["num_nextn_predict_layers"] - a.opening, [], 0
    while len(kept) < a.sequences:
        opened = continued(a.verbatim, a.model, a.threads, [
            {"tokens": [config["bos_token_id"]], "max_tokens": a.opening, "temperature": 1, "seed": (a.seed << 32) + tried + i} for i in range(AT_ONCE)])
        kept += continued(a.verbatim, a.model, a.threads, [{"tokens": ids, "max_tokens": rest, "temperature": 0} for ids in opened])
        tried += AT_ONCE
        print(f"{len(kept)} sequences", flush=True)
    np.save(os.path.join(a.work, "own.tmp.npy"), np.array(kept[:a.sequences], dtype=np.uint16))
    os.replace(os.path.join(a.work, "own.tmp.npy"), os.path.join(a.work, "own.npy"))


if __name__ == "__main__":
    main()
