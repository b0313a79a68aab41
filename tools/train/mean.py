"""A model whose weights are the mean of those of some models of the same shape: runs that went on from each other.

    python mean.py --out MODEL RUN1/model RUN2/model ...

The other files are those of the last model. The mean is computed in F32, and stored in the type of the weights.
"""
import argparse
import os
import shutil

from safetensors.torch import load_file, save_file


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("models", nargs="+")
    a = p.parse_args()
    weights = [load_file(os.path.join(m, "model.safetensors")) for m in a.models]
    mean = {name: (sum(w[name].float() for w in weights) / len(weights)).to(t.dtype) for name, t in weights[-1].items()}
    shutil.copytree(a.models[-1], a.out, ignore=shutil.ignore_patterns("model.safetensors"), dirs_exist_ok=True)
    save_file(mean, os.path.join(a.out, "mean.tmp"), metadata={"format": "pt"})
    os.replace(os.path.join(a.out, "mean.tmp"), os.path.join(a.out, "model.safetensors"))


if __name__ == "__main__":
    main()
