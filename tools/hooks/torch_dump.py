"""Records what the modules of a PyTorch model compute, in a dump that `verbatim diff` reads.

    from torch_dump import Dump

    dump = Dump(model, rename=[(r"^decoder\\.block\\.(\\d+)\\.attn\\.", r"model.layers.\\1.self_attn.")])
    dump.rows(tokens)                          # the rows of the next pass: token ids, and where they stand in the text
    model(torch.tensor([tokens]))
    dump.rows([next_token], first=len(tokens)) # a decode step
    model(torch.tensor([[next_token]]), past_key_values=...)
    dump.save("theirs.safetensors")            # and theirs.jsonl, its manifest

    verbatim diff theirs.safetensors MODEL

Every module's output becomes MODULE.PATH.output, and the first input of every module MODULE.PATH.input, if the tensor has one row for
each token of the pass: [batch, tokens, ...] or [tokens, ...]. `rename` is a list of patterns and replacements (re.sub), applied in
order, from the model's paths to Verbatim's names (docs/ORACLE.md). `keep` is a pattern: only names that match it are recorded.

    dump.rows(batch=[[5, 6, 7], [8, 9]], padding="left")   # a batch; the rows of padding are left out

Run as a program, it records a model of transformers, with decode steps after the first pass:

    python tools/hooks/torch_dump.py MODEL --tokens 5,6,7,8 [--steps N] [--dtype bfloat16] [--keep PATTERN] -o OUT.safetensors

It was run with transformers (CPU). Engines with other modules need their own `rename`.
"""
import argparse
import hashlib
import json
import re

import torch
from safetensors.torch import save_file

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32"}


class Dump:
    def __init__(self, model, rename=(), keep=".*"):
        self._rename = [(re.compile(pattern), text) for pattern, text in rename]
        self._keep = re.compile(keep)
        self._tensors, self._lines, self._passes = {}, [], -1
        self._handles = [module.register_forward_hook(self._hook(path)) for path, module in model.named_modules() if path]

    def rows(self, tokens=None, first=0, *, batch=None, padding="left"):
        """Names the rows of the next pass. `tokens`: of one text, the first of them is number `first` of the text. `batch`: a list of
        texts, padded on the `padding` side to the longest; `first` may then be a list, one number for each text."""
        texts = [list(tokens)] if batch is None else [list(text) for text in batch]
        firsts = [first] * len(texts) if isinstance(first, int) else list(first)
        longest = max(map(len, texts))
        self._rows = []  # (place in the flat batch, sequence, index, token)
        for s, text in enumerate(texts):
            pad = longest - len(text) if padding == "left" else 0
            self._rows += [(s * longest + pad + i, s, firsts[s] + i, int(token)) for i, token in enumerate(text)]
        self._size = longest * len(texts)
        self._passes += 1

    def _hook(self, path):
        def seen(module, arguments, output):
            self._record(path + ".input", arguments[0] if arguments else None)
            self._record(path + ".output", output[0] if isinstance(output, (tuple, list)) and output else output)
        return seen

    def _record(self, name, value):
        for pattern, text in self._rename:
            name = pattern.sub(text, name)
        if self._passes < 0 or not torch.is_tensor(value) or value.dtype not in DTYPES or not self._keep.search(name):
            return
        if value.dim() > 2 and value.shape[0] * value.shape[1] == self._size:
            value = value.flatten(0, 1)
        if value.dim() < 2 or value.shape[0] != self._size:
            return
        places = torch.tensor([row[0] for row in self._rows], device=value.device)
        value = value.detach().index_select(0, places).to("cpu", copy=True).contiguous()
        if name.endswith(".indexer.output") and value.dtype in (torch.int32, torch.int64):
            name = name.removesuffix("output") + "kept"
            own = torch.tensor([[row[2]] for row in self._rows], dtype=value.dtype)  # for the first tokens, classes also list later tokens
            value = torch.where(value > own, -1, value).to(torch.int32)
        key = f"{name}@{self._passes}" if self._passes else name
        self._tensors[key] = value
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        self._lines = [line for line in self._lines if line["tensor"] != key]  # a module that ran twice: the last time counts
        self._lines.append({"tensor": key, "name": name, "layer": int(layer[1]) if layer else None, "mtp_depth": None, "pass": self._passes,
                            "sequence": [row[1] for row in self._rows], "index": [row[2] for row in self._rows],
                            "token": [row[3] for row in self._rows], "shape": list(value.shape), "dtype": DTYPES[value.dtype],
                            "sha256": hashlib.sha256(value.view(torch.uint8).numpy().tobytes()).hexdigest()})

    def save(self, path):
        """Writes PATH and its manifest, and removes the hooks."""
        for handle in self._handles:
            handle.remove()
        save_file(self._tensors, path)
        with open(re.sub(r"\.safetensors$", "", path) + ".jsonl", "w") as manifest:
            for line in self._lines:
                manifest.write(json.dumps(line) + "\n")
        return len(self._tensors)


def open_transformers(path, dtype):
    """A model of transformers whose operators are computed one by one."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):  # the fused kernels take no float64
        model.set_experts_implementation("eager")
    return model


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokens", required=True, help="5,6,7")
    p.add_argument("--steps", type=int, default=0, help="this many of the tokens, the last ones, are decode steps of one token")
    p.add_argument("-o", "--out", required=True)
    p.add_argument("--keep", default=".*", help="record only names that match this pattern")
    p.add_argument("--dtype", default="float32", help="float32, float64, bfloat16: of weights and arithmetic")
    a = p.parse_args()
    model = open_transformers(a.model, a.dtype)
    tokens = [int(t) for t in a.tokens.split(",")]
    dump, cache, at = Dump(model, keep=a.keep), None, 0
    with torch.no_grad():
        for size in [len(tokens) - a.steps] + [1] * a.steps:
            dump.rows(tokens[at:at + size], at)
            cache = model(torch.tensor([tokens[at:at + size]]), past_key_values=cache, use_cache=True).past_key_values
            at += size
    print(f"{dump.save(a.out)} tensors")


if __name__ == "__main__":
    main()
