#!/usr/bin/env python3
"""What llama.cpp's converter writes to a GGUF file for tiny checkpoints: golden/gguf/converter.json (truth).

    against_converter.py LLAMA_CPP --commit COMMIT      (a directory with the files of llama.cpp; needs torch and transformers)

tests/engine/test_quantize.c compares the files of `verbatim quantize` with it: the keys of the architecture, and the type, shape
and SHA-256 of each tensor. The tiny checkpoints have no tokenizer, so the converter's set_vocab is replaced by nothing. Its files
of DeepSeek-V3 and Moonlight would lack the MTP layers, and that of Mistral 4 the scale of queries.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"v32": "f32", "glm5": "bf16", "glm": "bf16", "youtu": "bf16",  # FP8 (v32) and F16 (v2) are exact in F32 only
          "v2": "f32", "v2-lite": "bf16", "moonlight": "bf16"}


def with_types(config):
    """GLM's class writes the list of full layers to config.json; the tiny checkpoint has the keys from which it follows."""
    from indexer import is_shared
    if config["model_type"] == "glm_moe_dsa":
        layers = range(config["num_hidden_layers"])
        config["indexer_types"] = ["shared" if is_shared(config, i) else "full" for i in layers]
    return config


def convert(name, outtype, out):
    import conversion
    import gguf
    import torch
    with tempfile.TemporaryDirectory() as work:
        directory = pathlib.Path(work) / name
        shutil.copytree(ROOT / "tiny" / name, directory)
        config = with_types(json.loads((directory / "config.json").read_text()))
        (directory / "config.json").write_text(json.dumps(config))
        model = conversion.get_model_class(config["architectures"][0])
        for c in model.__mro__:
            if "set_vocab" in vars(c):
                c.set_vocab = lambda self: None
        file_type = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[outtype]
        with torch.inference_mode():
            model(directory, file_type, out).write()


def described(path):
    import gguf
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    keys = {k: f.contents() for k, f in reader.fields.items() if k.startswith(architecture + ".")}
    tensors = {t.name: [t.tensor_type.name, [int(n) for n in reversed(t.shape)], hashlib.sha256(t.data.tobytes()).hexdigest()]
               for t in reader.tensors}
    return {"architecture": architecture, "keys": keys, "tensors": tensors}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("llama_cpp", type=pathlib.Path)
    p.add_argument("--commit", required=True)
    a = p.parse_args()
    sys.path[:0] = [str(a.llama_cpp / "gguf-py"), str(a.llama_cpp)]
    lines = [f'"llama.cpp": {json.dumps(a.commit)}']
    for name, outtype in MODELS.items():
        with tempfile.TemporaryDirectory() as work:
            path = pathlib.Path(work) / "x.gguf"
            convert(name, outtype, path)
            d = described(path)
        tensors = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(d.pop("tensors").items()))
        lines.append(f'"{name}": {json.dumps({"outtype": outtype, **d})[:-1]}, "tensors": {{\n    {tensors}}}}}')
    (ROOT / "gguf" / "converter.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
