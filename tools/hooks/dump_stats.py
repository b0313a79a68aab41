"""Writes the statistics of a dump to a file of kilobytes that `verbatim diff` reads, where the dump itself is too large to be sent.

    python3 tools/hooks/dump_stats.py theirs.safetensors -o theirs.stats.jsonl [--tokens 5,6,7]
    verbatim diff theirs.stats.jsonl MODEL

The dump has a manifest (theirs.jsonl), or --tokens gives the tokens of its rows. tools/dump/stats.h describes the file; this program is
a second implementation, which needs NumPy only.
"""
import argparse
import hashlib
import json
import os
import re
import struct
import sys

import numpy as np

WHOLE, PROJECTIONS = 16, 4
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def read_tensors(path):
    """The tensors of a safetensors file: {name: (dtype, array)}."""
    with open(path, "rb") as file:
        raw = file.read()
    (size,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if t.get("dtype") in DTYPES:
            begin, end = (8 + size + offset for offset in t["data_offsets"])
            tensors[name] = t["dtype"], np.frombuffer(raw[begin:end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def signs(width):
    """[width, PROJECTIONS]: +1 or -1, from the bits of splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return 1.0 - 2.0 * (z[:, None] >> np.arange(PROJECTIONS, dtype=np.uint64) & np.uint64(1)).astype(np.float64)


def number(x):
    return x if np.isfinite(x) else "NaN" if np.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def statistics(dtype, rows, logits=False):
    """The keys of a line that describe the rows of a tensor [rows, width]."""
    width = rows.shape[1]
    keys = {"row_sha256": [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in rows]}
    if dtype.startswith("I"):
        return {**keys, "values": [[int(x) for x in row] for row in rows]}
    x = ((rows.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else rows).astype(np.float64)
    if width <= WHOLE:
        return {**keys, "values": [[number(float(v)) for v in row] for row in x]}
    finite = np.isfinite(x)
    some, count = finite.any(1), np.maximum(finite.sum(1), 1)
    zeroed = np.where(finite, x, 0)
    keys["min"] = [float(np.min(row, where=f, initial=np.inf)) if s else 0.0 for row, f, s in zip(x, finite, some)]
    keys["max"] = [float(np.max(row, where=f, initial=-np.inf)) if s else 0.0 for row, f, s in zip(x, finite, some)]
    keys["mean"] = (zeroed.sum(1) / count).tolist()
    keys["rms"] = np.sqrt((zeroed**2).sum(1) / count).tolist()
    keys["projections"] = (zeroed @ signs(width) / np.sqrt(width)).tolist()
    for name, of in (("nan", np.isnan(x)), ("inf", np.isinf(x))):
        if of.any():
            keys[name] = of.sum(1).tolist()
    if logits:
        order = np.argsort(-x, axis=1, kind="stable")[:, :2]
        keys["top"] = [[int(i), row[i], int(k), row[k]] if f.all() else None for (i, k), row, f in zip(order, x, finite)]
    return keys


def manifest_of(path):
    return re.sub(r"\.safetensors$", "", path) + ".jsonl"


def lines(path, tokens):
    """One line for each tensor of the dump."""
    tensors = read_tensors(path)
    manifest = manifest_of(path)
    if os.path.exists(manifest):
        with open(manifest, encoding="utf-8") as file:
            told = [json.loads(line) for line in file]
    else:
        places = {"sequence": [0] * len(tokens), "index": list(range(len(tokens))), "token": tokens}
        told = [{"tensor": name, "name": name, **places} for name, (_, x) in tensors.items() if x.ndim > 1 and len(x) == len(tokens)]
    for line in told:
        if line["tensor"] in tensors:
            dtype, x = tensors[line["tensor"]]
            of_row = x.shape[line.get("row_dims", 1):]
            x = x.reshape(-1, int(np.prod(of_row)))[line.get("rows", slice(None))]
            kept = {key: line[key] for key in line if key not in ("position", "slot", "parent", "sha256", "rows", "row_dims")}
            yield {**kept, "shape": [len(x), *of_row], "dtype": dtype,
                   **statistics(dtype, x, line["name"].endswith(("lm_head.output", "shared_head.head.output")))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dump")
    p.add_argument("--tokens", default="", help="5,6,7: if the dump has no manifest")
    p.add_argument("-o", "--out", required=True)
    a = p.parse_args()
    if os.path.abspath(a.out) == os.path.abspath(manifest_of(a.dump)):
        sys.exit(f"dump_stats.py: {a.out} is the name of the manifest of {a.dump}: wanted another name")
    with open(a.out, "w", encoding="utf-8") as file:
        for line in [{"format": "verbatim-stats", "version": 1}, *lines(a.dump, [int(t) for t in a.tokens.split(",") if t])]:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
