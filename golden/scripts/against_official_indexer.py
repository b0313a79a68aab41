#!/usr/bin/env python3
"""The official script of DeepSeek-V3.2-Exp as a witness of sparse attention, in float64, one process, on the CPU.

    against_official_indexer.py PATH/TO/inference --file NAME [--commit HASH] [--convention NAME=VALUE ...]
    writes golden/truth/v32.FILE.{safetensors,json}

PATH is the folder of its model.py, which stays outside this project. --convention: what this version of the script does,
for NumPy to do the same. As in against_official.py, the weights come dequantized, every router gets its bias, and
max_seq_len decides about YaRN. In addition:
  kernels   the Hadamard transform, the FP8 codes and the scores are computed on a GPU: replaced by plain PyTorch of the
            same formula. Codes are numbers of E4M3 in float64; the steps that decide a scale stay float32, as there
  topk      torch.topk does not define which of several equal scores it keeps: replaced by a stable sort
  float32   "as is", the weights that meet a row in float32 (head, k_norm, and weights_proj in the later version) are float32
Each run has both forms: "prefill" is all rows at once, "decode" row after row with its caches and absorbed weights.
"""
import argparse
import hashlib
import importlib
import json
import os
import platform
import sys
import types

import numpy as np
import torch

import make_truth
from against_official import NAMES, ROWS, arguments, distance, widened
from forward import Model, read_config, read_weights

NAME, TINY, TRUTH = "v32", make_truth.TINY, make_truth.TRUTH


def rotate_activation(x):
    y, size = x, x.size(-1)
    for half in (1 << i for i in range(size.bit_length() - 1)):            # the fast transform, in natural order
        pairs = y.view(*x.shape[:-1], -1, 2, half)
        y = torch.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], dim=-2).view(x.shape)
    return y * size ** -0.5


def act_quant(x, block_size, scale_fmt):
    assert scale_fmt == "ue8m0"
    groups = x.reshape(*x.shape[:-1], -1, block_size)
    amax = groups.abs().amax(dim=-1).to(torch.float32).clamp(min=1e-4)
    bits = (amax * torch.tensor(1 / 448, dtype=torch.float32)).view(torch.int32)
    scale = torch.exp2(((bits >> 23 & 255) - 127 + (bits & 0x7FFFFF != 0)).to(torch.float64))
    code = (groups / scale.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return code.to(torch.float64).view(x.shape), scale


def fp8_index(q, weights, k, k_scale):
    dots = torch.einsum("bshd,btd->bsth", q, k.to(q.dtype)).relu() * weights[..., 0].unsqueeze(2)
    return dots.sum(dim=-1) * k_scale[..., 0].unsqueeze(1)


def topk(x, k, dim=-1, sorted=True):
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


def split_heads(x, pattern, d):
    assert pattern == "b s (h d) -> b s h d"
    return x.view(*x.shape[:2], -1, d)


def load_script(path):
    def refuse(*_):
        raise RuntimeError("the weights are dequantized: no FP8 kernel should be called")

    sys.modules["kernel"] = types.SimpleNamespace(act_quant=act_quant, fp8_gemm=refuse, fp8_index=fp8_index)
    sys.modules["einops"] = types.SimpleNamespace(rearrange=split_heads)
    sys.path.insert(0, path)
    script = importlib.import_module("model")
    script.rotate_activation = rotate_activation
    script.dist = types.SimpleNamespace(broadcast=lambda tensor, src: None, is_initialized=lambda: False)
    torch.Tensor.topk = topk
    return script


class Witness:
    def __init__(self, script, as_is):
        c = read_config(os.path.join(TINY, NAME))
        args = arguments(script, c)
        args.scale_fmt = "ue8m0"
        args.index_n_heads, args.index_head_dim, args.index_topk = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        torch.set_default_dtype(torch.float64)
        self.model, self.sets = script.Transformer(args), {}
        float32 = [m for m in self.model.modules() if isinstance(m, (script.Linear, script.LayerNorm))
                   and m.weight.dtype == torch.float32]
        self.model.double().eval()
        for i, layer in enumerate(self.model.layers):
            layer.attn_norm.eps = layer.ffn_norm.eps = c["rms_norm_eps"]
            if hasattr(layer.ffn, "gate"):
                layer.ffn.gate.bias = torch.nn.Parameter(torch.empty(c["n_routed_experts"], dtype=torch.float64))
            layer.attn.indexer.register_forward_hook(lambda m, _input, output, i=i: self.keep(i, output[0], m.index_topk))
        state = {}
        for full, w in read_weights(os.path.join(TINY, NAME), [128, 128]).items():
            parts = full.removeprefix("model.").split(".")
            if parts[0] != "layers" or int(parts[1]) < c["num_hidden_layers"]:
                state[".".join(NAMES.get(part, part) for part in parts)] = torch.from_numpy(np.array(w))
        self.model.load_state_dict(state, strict=True)
        for module in float32 if as_is else ():
            module.float()

    def keep(self, layer, rows, width):
        """positions up to a row's own, ascending, then -1"""
        seen = self.sets.setdefault(f"sets.{layer}", [])
        for row in rows.tolist():
            kept = sorted(t for t in row if t <= len(seen))
            seen.append(kept + [-1] * (width - len(kept)))

    @torch.inference_mode()
    def logits(self, tokens, form):
        seen = []
        hook = self.model.norm.register_forward_hook(lambda _module, _input, output: seen.append(output[0][0]))
        for start, part in [(0, tokens)] if form == "prefill" else enumerate([t] for t in tokens):
            last = self.model(torch.tensor([part]), start)
        hook.remove()
        rows = torch.cat(seen)
        logits = self.model.head(rows.to(self.model.head.weight.dtype))
        assert torch.allclose(logits[-1], last[0], rtol=0, atol=1e-10 if logits.dtype == torch.float64 else 1e-4)
        return logits.double().numpy()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("path")
    p.add_argument("--file", required=True)
    p.add_argument("--commit", help="the revision of the checkout, recorded with the numbers")
    p.add_argument("--convention", action="append", default=[], metavar="NAME=VALUE")
    a = p.parse_args()
    torch.set_num_threads(1)
    script = load_script(a.path)
    conventions = dict(c.split("=") for c in a.convention)
    with open(os.path.join(TRUTH, NAME + ".json"), encoding="utf-8") as f:
        tokens = json.load(f)["tokens"]
    assert len(tokens) < ROWS
    keywords = {name.replace("-", "_"): value for name, value in conventions.items()}
    ours = {angle: Model(os.path.join(TINY, NAME), rope_angle=angle, **keywords) for angle in ("f64", "f32")}
    expected = {angle: model.target(tokens)[0] for angle, model in ours.items()}
    chosen = make_truth.chosen_positions(ours["f64"], tokens, None)[0]
    told = dict(checkpoint=NAME, tokens="those of " + NAME + ".json", conventions=conventions,
                measure="max|official - numpy| / max|numpy|, and rows with other positions", logits={}, sets={})
    for run in ("as is", "widened"):
        for form in ("prefill", "decode"):
            with widened(script, run == "widened"):
                witness = Witness(script, run == "as is")
                theirs = witness.logits(tokens, form)
            sets = {k: np.array(v, np.int64) for k, v in witness.sets.items()}
            told["logits"][f"{run}, {form}"] = {"angles " + angle: distance(theirs, z) for angle, z in expected.items()}
            told["sets"][f"{run}, {form}"] = int(sum((sets[k] != chosen[k]).any(axis=1).sum() for k in chosen))
            if (run, form) == ("as is", "decode"):
                make_truth.write_f64(os.path.join(TRUTH, f"{NAME}.{a.file}.safetensors"), dict(logits=theirs, **sets),
                                     "official script, as is, decode")
    with open(os.path.join(a.path, "model.py"), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    told.update(script="deepseek-ai/DeepSeek-V3.2-Exp inference/model.py", commit=a.commit, sha256=digest,
                versions=dict(torch=torch.__version__, numpy=np.__version__, python=platform.python_version()))
    make_truth.write_compact(os.path.join(TRUTH, f"{NAME}.{a.file}.json"), told)
    print(json.dumps({k: told[k] for k in ("logits", "sets")}, indent=1))


if __name__ == "__main__":
    main()
