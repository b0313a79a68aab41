#!/usr/bin/env python3
"""Makes golden/operators/: for each operator that `verbatim replay` lists, the inputs and the result, in double precision.

    golden/scripts/make_operators.py [build/verbatim]

The inputs are values of the reference on three tokens; the result is what `replay` computes from them. index.json says for each
pair of files which checkpoint, operator and layer they belong to."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERBATIM = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "verbatim").resolve()
OUT = ROOT / "golden" / "operators"
TOKENS = "5,17,99"


def run(*arguments):
    return subprocess.run([str(VERBATIM), *map(str, arguments)], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def read(path):
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    return {name: (t["dtype"], t["shape"], raw[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def name_of(name, layer, layers):
    """The complete name of an input."""
    if name == "<hidden":
        return "model.norm.output"
    if name == "<layer":
        before = layers if layer < 0 else layer
        return "model.layers.%d.eh_proj.output" % layer if layer >= layers else "model.layers.%d.output" % (before - 1)
    return name if layer < 0 else "model.layers.%d.%s" % (layer, name)


def inputs_of(operator, dump, layer, layers):
    """The tensors that the operator reads, or None if the dump lacks one."""
    found = {}
    for name in operator["inputs"]:
        full, optional = name_of(name.rstrip("?"), layer, layers), name.endswith("?")
        if name == "tokens":
            found["tokens"] = ("I32", [3], b"".join(int(t).to_bytes(4, "little") for t in TOKENS.split(",")))
        elif name == "mlp.experts":  # the outputs of the chosen experts, and which they are
            wanted = [n for n in dump if n.startswith(full + ".")] + ["model.layers.%d.mlp.gate.experts" % layer]
            found.update((n, dump[n]) for n in wanted if n in dump)
        elif full in dump:
            found[full] = dump[full]
        elif not optional:
            return None
    return found


def main():
    OUT.mkdir(exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    operators, index, done = json.loads(run("replay", "--json"))["operators"], [], set()
    for checkpoint in ("v3", "v2-lite"):
        model = ROOT / "golden" / "tiny" / checkpoint
        layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
        with tempfile.TemporaryDirectory() as work:
            run("dump", model, "--tokens", TOKENS, "--reference", "-o", pathlib.Path(work) / "d.safetensors")
            dump = read(pathlib.Path(work) / "d.safetensors")
        for o in operators:
            layer = {"model": -1, "layer": 0 if o["operator"] == "mlp" else 1, "mtp": layers}[o["in"]]
            result = name_of(o["output"], layer, layers)
            if o["operator"] == "expert":
                result = next(n for n in dump if n.startswith("model.layers.1.mlp.experts."))
            given = inputs_of(o, dump, layer, layers)
            file = o["operator"] + ("-mtp" if o["in"] == "mtp" and o["operator"] in ("embedding", "stream") else "")
            file += "-output" if o["output"] == "output" else "-norm" if o["output"] == "model.norm.input" else ""
            if given is None or file in done or result not in dump:
                continue
            write(OUT / (file + ".in.safetensors"), given)
            short = result if layer < 0 else result.split(".", 3)[3]
            more = ["--layer", layer] if layer >= 0 else []
            run("replay", model.relative_to(ROOT), short, "--reference", *more, "--input", OUT / (file + ".in.safetensors"), "-o",
                OUT / (file + ".out.safetensors"))
            done.add(file)
            index.append({"file": file, "checkpoint": checkpoint, "operator": short, "layer": layer, "result": result})
    (OUT / "index.json").write_text(json.dumps({"operators": index}, indent=1) + "\n")
    print("%d operators" % len(index))


if __name__ == "__main__":
    main()
