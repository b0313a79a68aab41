#!/usr/bin/env python3
"""Write golden/truth/blocks.safetensors: what the `gguf` package says about GGUF's quantized types.

    TYPE.blocks   U8 [n, bytes]     random blocks; their scales are of any size and sign, zeros and subnormal ones among them
    TYPE          F32 [n, numbers]  the package's dequantize of them
    grid.TYPE     I8 [rows, numbers]  the grids (codebooks) of the IQ types; of IQ1 in units of 1, as the package has them
    rows          F32 [n, 64]       rows of weights: of any size, equal maxima, numbers between two codes, zeros
    rows.TYPE     F32 [n, 64]       dequantize(quantize(rows)) for Q8_0 and Q4_0

The package is of the llama.cpp project and needs nothing but NumPy (requirements.txt); no file of ours is read.
"""
import os

import gguf
import numpy as np

from make_tiny import write_safetensors

TRUTH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "truth")
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
          "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64],
          "Q4_1": [0, 2], "IQ4_NL": [0], "IQ4_XS": [0], "Q3_K": [108], "Q2_K": [80, 82], "NVFP4": []}  # where
CORNERS = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00]  # zeros, subnormal ones, the largest, 1


def blocks_of(kind, rng):
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    n = 32 if numbers == 32 else 12
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if kind.name == "MXFP4":  # exponents of every size. The last rows' are the largest: with the codes 0, 1, -0 and -1 they are finite
        blocks[:, 0] = rng.integers(0, 253, n)
        blocks[:7, 0] = [0, 1, 2, 252, 253, 254, 255]
        blocks[4:7, 1:] = rng.choice(np.array([0x00, 0x01, 0x10, 0x18, 0x81, 0x99, 0x90], np.uint8), (3, size - 1))
    if kind.name == "NVFP4":  # no signs, which the package takes for parts of other numbers
        blocks[:, :4] &= 0x7F
        blocks[0, :4], blocks[1, :4] = [0, 1, 7, 8], [0x7F, 0x7E, 0x38, 9]
    for at in SCALES[kind.name]:
        scales = rng.integers(0, 0x7C00, n).astype(np.uint16) | rng.integers(0, 2, n).astype(np.uint16) << 15  # all finite
        scales[:len(CORNERS)] = rng.permutation(CORNERS)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(n, 2)
    if kind.name == "IQ1_M":  # four bits of the scale at the top of each integer of 16 bits
        scales = rng.integers(0, 0x7C00, n).astype(np.uint16) | rng.integers(0, 2, n).astype(np.uint16) << 15
        scales[:len(CORNERS)] = rng.permutation(CORNERS)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (scales >> 4 * i & 15) << 4
    return blocks


def rows(rng):
    w = rng.standard_normal((24, 64)).astype(np.float32)
    w[:12] *= np.exp2(rng.integers(-20, 9, (12, 1))).astype(np.float32)
    for row, largest, size in ((12, 127, 1), (13, 127, 2.0**-9), (14, -8, 1), (15, 8, 2.0**-9)):  # halfway between codes
        w[row] = (rng.integers(-abs(largest), abs(largest), 64) + 0.5) * size
        w[row, [5, 40]] = largest * size
    w[16:20, :] = rng.choice(np.array([-3, -1, 1, 3], np.float32), (4, 64))  # several of the largest magnitude
    w[20] = 0
    w[21, 32:] = 0
    w[22] *= 1e-7  # a scale that F16 holds only as 0 or subnormal
    w[23, ::2] = -0.0
    return w


def main():
    tensors = []
    for name in SCALES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = blocks_of(kind, np.random.default_rng([41, int(kind)]))
        tensors += [(name + ".blocks", "U8", blocks), (name, "F32", gguf.dequantize(blocks, kind))]
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        kind = getattr(gguf.quants, name)
        tensors.append(("grid." + name, "I8", kind.grid.reshape(kind.grid_shape).astype(np.int8)))
    w = rows(np.random.default_rng(41))
    tensors.append(("rows", "F32", w))
    for name in ("Q8_0", "Q4_0"):
        kind = gguf.GGMLQuantizationType[name]
        tensors.append(("rows." + name, "F32", gguf.dequantize(gguf.quantize(w, kind), kind)))
    assert all(np.isfinite(a).all() for _, _, a in tensors), [n for n, _, a in tensors if not np.isfinite(a).all()]
    tensors.sort(key=lambda t: t[1])  # F32 first, at multiples of four bytes
    write_safetensors(os.path.join(TRUTH, "blocks.safetensors"), tensors, {"source": "gguf 0.19.0"})


main()
