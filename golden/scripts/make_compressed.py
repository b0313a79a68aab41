#!/usr/bin/env python3
"""Write golden/truth/compressed.safetensors: what the compressed-tensors package says about the formats it packs.

For each format in FORMATS, of random weights:

    NAME.weight_packed or NAME.weight, NAME.weight_scale ...   what the package's compress makes of them
    NAME.f32      F32 [rows, cols]   the package's dequantization in F32
    NAME.stored   F32 [rows, cols]   the package's decompress as it is: it rounds each weight to BF16

A format is one entry: how scales are chosen, the scheme, and the compressor. Needs torch and compressed-tensors 0.20; no file of ours is read."""
import os

import torch
from compressed_tensors.compressors import IntQuantizationCompressor, MXFP4PackedCompressor, NVFP4PackedCompressor, PackedQuantizationCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import MXFP4, NVFP4
from safetensors.torch import save_file

ROWS, COLS = 24, 96
INT4 = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
INT8 = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")


def int4_scales(weights):
    """BF16, most of them such that the codes span -8 to 7; some are negative, large or small"""
    largest = weights.reshape(ROWS, -1, 32).abs().amax(-1)
    factor = 2.0 ** torch.randint(-1, 2, largest.shape) * torch.where(torch.rand(largest.shape) < 0.2, -1.0, 1.0)
    return {"weight_scale": (largest / 7.5 * factor).to(torch.bfloat16)}


def nvfp4_scales(weights):
    """As published: a number for the whole matrix, such that the largest scale is 448. The smallest are subnormal E4M3 numbers."""
    largest = weights.reshape(ROWS, -1, 16).abs().amax(-1)
    total = 6 * 448 / largest.amax()
    return {"weight_scale": (largest / 6 * total).to(torch.float8_e4m3fn).float(), "weight_global_scale": total.reshape(1)}


def mxfp4_scales(weights):
    largest = weights.reshape(ROWS, -1, 32).abs().amax(-1)
    return {"weight_scale": 2.0 ** torch.floor(torch.log2(largest / 6))}


def int8_scales(weights):
    """BF16, one for each row; some rows use all codes from -128 to 127, others few of them"""
    largest = weights.abs().amax(-1, keepdim=True)
    return {"weight_scale": (largest / 127.5 * 2.0 ** torch.randint(-1, 3, largest.shape)).to(torch.bfloat16)}


def integers_in_f32(compressor):
    """Its decompress, given scales that are widened to F32."""
    def decompress(packed, scheme):
        wide = {key: value.float() if value.is_floating_point() else value for key, value in packed.items()}
        return compressor.decompress(wide, scheme)["weight"]
    return decompress


def fp4_in_f32(compressor):
    """The two functions that decompress calls. It asks for BF16."""
    def decompress(packed, scheme):
        numbers = unpack_fp4_from_uint8(packed["weight_packed"], ROWS, COLS, torch.float32)
        scale = compressor._decompress_scale(packed["weight_scale"], torch.float32)
        return dequantize(numbers, scale, args=scheme.weights, global_scale=packed.get("weight_global_scale"), dtype=torch.float32)
    return decompress


FORMATS = {"int4": (int4_scales, INT4, PackedQuantizationCompressor, integers_in_f32(PackedQuantizationCompressor)),
           "nvfp4": (nvfp4_scales, NVFP4["weights"], NVFP4PackedCompressor, fp4_in_f32(NVFP4PackedCompressor)),
           "mxfp4": (mxfp4_scales, MXFP4["weights"], MXFP4PackedCompressor, fp4_in_f32(MXFP4PackedCompressor)),
           "int8": (int8_scales, INT8, IntQuantizationCompressor, integers_in_f32(IntQuantizationCompressor))}


def main():
    torch.manual_seed(1)
    out = {}
    for name, (scales, args, compressor, in_f32) in FORMATS.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weights = torch.randn(ROWS, COLS) * 2.0 ** torch.randint(-12, 4, (ROWS, 1))
        packed = compressor.compress({**scales(weights), "weight": weights}, scheme)
        out.update({f"{name}.{key}": value.contiguous() for key, value in packed.items()})
        out[name + ".f32"] = in_f32(packed, scheme).float()
        out[name + ".stored"] = compressor.decompress(packed, scheme)["weight"].float()
    save_file(out, os.path.join(os.path.dirname(__file__), "..", "truth", "compressed.safetensors"))


if __name__ == "__main__":
    main()
