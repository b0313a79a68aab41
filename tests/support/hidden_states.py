#!/usr/bin/env python3
"""Makes files in the form of vLLM's ExampleHiddenStatesConnector of dumps of model.norm.input and perhaps of what layers read.

    hidden_states.py FROM TO HOW

FROM: a folder with NAME.safetensors and NAME.jsonl, as `verbatim dump` writes them. HOW: the dtype (F32, BF16, F16), "four"
(F16, and three layers of zeros before it), or the name of a mistake. Needs no packages.
"""
import array
import json
import os
import struct
import sys


def read(path):
    """the rows of a dump, a list for each layer; their shape; the tokens"""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    names = sorted(name for name in header if name.startswith("model.layers")) + ["model.norm.input"]
    places = [header[name]["data_offsets"] for name in names]
    with open(path[:-len("safetensors")] + "jsonl", encoding="utf-8") as f:
        tokens = json.loads(f.readline())["token"]
    return [array.array("f", data[a:b]) for a, b in places], header[names[0]]["shape"], tokens


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def write(path, tensors):
    """tensors: name to dtype, shape and bytes"""
    header, data = {}, b""
    for name, (dtype, shape, some) in tensors.items():
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(some)])
        data += some
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def convert(layers, shape, tokens, how):
    count, d = shape
    dtype = how if how in ("F32", "BF16", "F16") else "F32"
    if how == "nan":
        layers[0][5 * d + 7] = float("nan")
    if how == "vocabulary":
        tokens[3] = 128
    if how == "negative":
        tokens[3] = -1
    if how == "lengths":
        tokens.pop()
    if how == "four":
        layers, dtype = [[0] * (count * d)] * 3 + layers[-1:], "F16"
    width = d - (how == "width")
    rows = [x for s in range(count) for layer in layers for x in layer[s * d:s * d + width]]
    kind = {"F32": "f", "F16": "e", "BF16": "H"}[dtype]
    data = struct.pack(f"<{len(rows)}{kind}", *(map(bf16, rows) if dtype == "BF16" else rows))
    ids = ("F32", [len(tokens)], struct.pack(f"<{len(tokens)}f", *tokens)) if how == "ids" else ("I64", [len(tokens)], struct.pack(f"<{len(tokens)}q", *tokens))
    tensors = {"hidden_states": ("I32" if how == "dtype" else dtype, [count, len(layers), width], data), "token_ids": ids}
    if how in ("no-ids", "neither"):
        del tensors["token_ids"]
    return {"other": tensors["hidden_states"]} if how == "neither" else tensors


def main():
    source, target, how = sys.argv[1:]
    os.mkdir(target)
    for name in sorted(os.listdir(source)):
        if name.endswith(".safetensors") and how != "empty":
            path = os.path.join(target, name)
            write(path, convert(*read(os.path.join(source, name)), how))
            if how == "truncated":
                os.truncate(path, os.path.getsize(path) - 40)


if __name__ == "__main__":
    main()
