#!/usr/bin/env python3
"""Write golden/truth/compressed.safetensors: what the compressed-tensors package says about the formats it packs.

For each format in FORMATS, of random weights:

    NAME.weight_packed, NAME.weight_scale ...   what the package's compress makes of them
    NAME.f32      F32 [rows, cols]   the package's decompress, given the scales widened to F32
    NAME.stored   F32 [rows, cols]   the same with the scales as stored; the package rounds each weight to their type

A format is one entry: how scales are chosen, the scheme, and the compressor. Needs torch and compressed-tensors 0.20; no file of ours is read."""
import os

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

ROWS, COLS = 24, 96
INT4 = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)


def int4_scales(weights):
    """BF16, most of them such that the codes span -8 to 7; some are negative, large or small"""
    largest = weights.reshape(ROWS, -1, 32).abs().amax(-1)
    factor = 2.0 ** torch.randint(-1, 2, largest.shape) * torch.where(torch.rand(largest.shape) < 0.2, -1.0, 1.0)
    return {"weight_scale": (largest / 7.5 * factor).to(torch.bfloat16)}


FORMATS = {"int4": (int4_scales, INT4, PackedQuantizationCompressor)}


def main():
    torch.manual_seed(1)
    out = {}
    for name, (scales, args, compressor) in FORMATS.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weights = torch.randn(ROWS, COLS) * 2.0 ** torch.randint(-12, 4, (ROWS, 1))
        packed = compressor.compress({"weight": weights, **scales(weights)}, scheme)
        wide = {key: value.float() if value.is_floating_point() else value for key, value in packed.items()}
        out.update({f"{name}.{key}": value.contiguous() for key, value in packed.items()})
        out[name + ".f32"] = compressor.decompress(wide, scheme)["weight"].float()
        out[name + ".stored"] = compressor.decompress(packed, scheme)["weight"].float()
    save_file(out, os.path.join(os.path.dirname(__file__), "..", "truth", "compressed.safetensors"))


if __name__ == "__main__":
    main()
