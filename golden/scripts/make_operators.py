#!/usr/bin/env python3
"""Makes golden/operators/: for each operator that `verbatim replay` lists, the inputs and the result, in double precision. The tokens
of sampling and acceptance are those that the engine chooses.

    golden/scripts/make_operators.py [build/verbatim]

The inputs are values of the reference on three tokens; the result is what `replay` computes from them. index.json says for each
pair of files which checkpoint, operator and layer they belong to."""
import json
import pathlib
import struct
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
        if name == "<kept":  # these models have no sparse attention
            continue
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


SAMPLING = ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--seed", "3"]
PENALTIES = ["--temperature", "1.5", "--repetition-penalty", "1.2", "--presence-penalty", "0.5", "--frequency-penalty", "0.25",
             "--logit-bias", "7:2,9:-inf"]


def integers(*n):
    return "I32", [len(n)], struct.pack("<%di" % len(n), *n)


def choices():
    """Inputs and options of sampling and acceptance, by file."""
    model, given = ROOT / "golden" / "tiny" / "v3", {}
    with tempfile.TemporaryDirectory() as work:
        logits, out = pathlib.Path(work) / "d.safetensors", pathlib.Path(work) / "q.safetensors"
        run("dump", model, "--tokens", "5,17,99,3,8,40", "--taps", "lm_head.output", "-o", logits)
        rows = {"lm_head.output": read(logits)["lm_head.output"]}
        run("replay", model, "sampling", "--input", logits, "-o", out, "--temperature", "2")
        _, (_, vocab), raw = read(out)["sampling.probabilities"]
    likely = [raw[i * vocab * 8 : (i + 1) * vocab * 8] for i in (0, 1, 3, 4)]  # a round has two drafts and three rows of logits

    def drafts(ranks):
        ranked = [sorted(range(vocab), key=lambda t, p=struct.unpack("<%dd" % vocab, row): -p[t]) for row in likely]
        return {**rows, "draft": integers(*(order[rank] for order, rank in zip(ranked, ranks))), "index": integers(3, 9), "seed": integers(1, 2)}

    given["sampling"] = rows, SAMPLING
    given["sampling-penalties"] = {**rows, "tokens": integers(5, 17, 99, 3, 8, 40), "prompt": integers(2)}, PENALTIES
    given["acceptance"] = drafts((0, 0, 0, 1)), []
    given["acceptance-rejection"] = ({**drafts((2, 0, 1, 60)), "draft.probabilities": ("F64", [4, vocab], b"".join(likely))},
                                     ["--acceptance", "rejection", "--temperature", "1.5", "--top-k", "50"])
    return given


def make_choices(index):
    for file, (given, options) in choices().items():
        write(OUT / (file + ".in.safetensors"), given)
        operator = file.split("-")[0]
        run("replay", "golden/tiny/v3", operator, *options, "--input", OUT / (file + ".in.safetensors"), "-o", OUT / (file + ".out.safetensors"))
        for result in read(OUT / (file + ".out.safetensors")):
            index.append({"file": file, "checkpoint": "v3", "operator": operator, "layer": -1, "result": result, "options": options})


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
            if o["operator"] in ("sampling", "acceptance"):
                continue
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
    make_choices(index)
    (OUT / "index.json").write_text(json.dumps({"operators": index}, indent=1) + "\n")
    print("%d results" % len(index))


if __name__ == "__main__":
    main()
