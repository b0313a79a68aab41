"""tests/foreign/files.py -- reads checkpoints, and writes dumps as docs/ORACLE.md tells other engines to write them.

Needs NumPy alone."""

import hashlib
import json
import pathlib

import numpy as np


def bf16_bits(x):
    """The 16 bits of each number of x, rounded to nearest, ties to even. A NaN stays a NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_table():
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value[(code & 127) == 127] = np.nan
    return (value * np.where(code < 128, 1, -1)).astype(np.float32)


E4M3 = e4m3_table()
READ = {
    "F32": lambda data: np.frombuffer(data, np.float32),
    "F16": lambda data: np.frombuffer(data, np.float16).astype(np.float32),
    "BF16": lambda data: from_bf16(np.frombuffer(data, np.uint16)),
    "F8_E4M3": lambda data: E4M3[np.frombuffer(data, np.uint8)],
}
WRITE = {
    "F32": lambda x: np.ascontiguousarray(x, np.float32).tobytes(),
    "F16": lambda x: np.ascontiguousarray(x, np.float16).tobytes(),
    "BF16": lambda x: bf16_bits(x).tobytes(),
    "I32": lambda x: np.ascontiguousarray(x, np.int32).tobytes(),
}


def read_safetensors(path):
    """name -> (dtype, float32 array)"""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, t in json.loads(raw[8:begin]).items():
        if name != "__metadata__":
            first, last = t["data_offsets"]
            tensors[name] = t["dtype"], READ[t["dtype"]](raw[begin + first : begin + last]).reshape(t["shape"])
    return tensors


def read_checkpoint(directory):
    """config.json, and every weight as float32. An FP8 weight is its code times the scale of its block, rounded once. Also the
    FP8 matrices as they are stored, for faults in their scales."""
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    stored = {}
    for path in sorted(directory.glob("*.safetensors")):
        stored.update(read_safetensors(path))
    block = config.get("quantization_config", {}).get("weight_block_size", [128, 128])
    weights, fp8 = {}, {}
    for name, (dtype, x) in stored.items():
        if name.endswith("_scale_inv"):
            continue
        if dtype == "F8_E4M3":
            scale = stored[name + "_scale_inv"][1]
            fp8[name] = x, scale, block
            x = scaled(x, scale, block)
        weights[name.removesuffix(".weight")] = x
    return config, weights, {name.removesuffix(".weight"): value for name, value in fp8.items()}


def scaled(codes, scale, block):
    rows = np.repeat(np.repeat(scale, block[0], 0), block[1], 1)[: codes.shape[0], : codes.shape[1]]
    return codes * rows


def write_safetensors(path, tensors, metadata=None):
    """tensors: (name, dtype, array) in the order of the file"""
    header, data, offset = ({"__metadata__": metadata} if metadata else {}), [], 0
    for name, dtype, x in tensors:
        raw = WRITE[dtype](x)
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def write_dump(path, taps):
    """One tensor per value and pass, called NAME, or NAME@PASS after the first pass that has it, and the manifest beside it."""
    path = pathlib.Path(path)
    tensors, lines, seen = [], [], set()
    for t in taps:
        name = f"{t.name}@{t.at}" if t.name in seen else t.name
        seen.add(t.name)
        tensors.append((name, t.dtype, t.value))
        line = {"tensor": name, "name": t.name, "layer": t.layer, "mtp_depth": t.depth, "step": t.step, "pass": t.at}
        line.update({key: [getattr(row, key) for row in t.rows] for key in ROW_KEYS})
        line.update(shape=list(t.value.shape), dtype=t.dtype, layout=t.layout)
        line["sha256"] = hashlib.sha256(WRITE[t.dtype](t.value)).hexdigest()
        lines.append(json.dumps(line))
    write_safetensors(path, tensors)
    path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


ROW_KEYS = ("sequence", "token", "index", "position", "slot", "draft", "accepted", "parent")
# What hooks on the modules of a model see: inputs and outputs of modules, no value between them.
HOOKED = ("layernorm.input", "layernorm.output", "proj.output", "_mqa.output", "o_proj.input", "gate.output", "mlp.output",
          "shared_experts.output", "norm.input", "norm.output", "model.embed_tokens.output", "lm_head.output")


def hooked(name):
    return name.endswith(HOOKED) or (name.startswith("model.layers.") and name.count(".") == 3 and name.endswith(".output"))


def write_hooks(path, taps, tokens):
    """As somebody writes it who calls torch.cat on the outputs of hooks: module names, no manifest, no module of MTP, the rows of all
    passes one after the other without those of rejected drafts."""
    values = {}
    for t in taps:
        if t.depth is None and hooked(t.name):
            final = [i for i, row in enumerate(t.rows) if row.final]
            values.setdefault(t.name, (t.dtype, []))[1].append(t.value[final])
    write_safetensors(path, [(name, dtype, np.concatenate(parts)) for name, (dtype, parts) in values.items()],
                      {"format": "pt", "tokens": ",".join(map(str, tokens))})
