"""Text of a model's own, for training its MTP modules on what they will draft. Needs `make`, not PyTorch.

    python own.py --model MODEL --work WORKDIR         # writes WORKDIR/own.npy, which train.py --own reads

Each sequence begins with BOS and --opening tokens drawn at temperature 1. From there on the most likely token is taken, as
when drafting is measured. Sequences that end early are left out. No text of the corpus is read.
"""
import argparse
import json
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../golden/scripts"))
from make_tale_text import generate  # noqa: E402

AT_ONCE = 256


def continued(a, requests):
    """Prompts and answers, as ids, of the requests whose answers have all tokens that were asked for."""
    with tempfile.TemporaryDirectory() as folder:
        told = generate(a.verbatim, folder, "own", [{"id": i, **r} for i, r in enumerate(requests)], a.model, a.threads)
    return [r["tokens"] + told[i] for i, r in enumerate(requests) if len(told[i]) == r["max_tokens"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--verbatim", default=os.path.join(HERE, "../../build/verbatim"))
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
        opened = continued(a, [
            {"tokens": [config["bos_token_id"]], "max_tokens": a.opening, "temperature": 1, "seed": (a.seed << 32) + tried + i} for i in range(AT_ONCE)])
        kept += continued(a, [{"tokens": ids, "max_tokens": rest, "temperature": 0} for ids in opened])
        tried += AT_ONCE
        print(f"{len(kept)} sequences", flush=True)
    np.save(os.path.join(a.work, "own.tmp.npy"), np.array(kept[:a.sequences], dtype=np.uint16))
    os.replace(os.path.join(a.work, "own.tmp.npy"), os.path.join(a.work, "own.npy"))


if __name__ == "__main__":
    main()
