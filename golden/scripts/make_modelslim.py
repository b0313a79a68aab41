#!/usr/bin/env python3
"""Write golden/truth/modelslim.safetensors: a matrix in the form of ModelSlim's W8A8_DYNAMIC and W8A16, and its weights.

    weight         I8 [24, 96]    random codes; the first row has -128 to -33, the second 32 to 127
    weight_scale   F32 [24, 1]    of any size
    weight_offset  F32 [24, 1]    zeros, as symmetric quantization writes them
    f32            F32 [24, 96]   deq_weight = (weight - weight_offset) * weight_scale, as ModelSlim documents the format (AscendV1)

Needs nothing but NumPy; no file of ours is read."""
import os

import numpy as np

from make_tiny import write_safetensors

TRUTH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "truth")
ROWS, COLS = 24, 96


def main():
    rng = np.random.default_rng(8)
    weight = rng.integers(-128, 128, (ROWS, COLS)).astype(np.int8)
    weight[0], weight[1] = np.arange(-128, -128 + COLS), np.arange(128 - COLS, 128)
    scale = (rng.uniform(1, 2, (ROWS, 1)) * np.exp2(rng.integers(-20, 3, (ROWS, 1)))).astype(np.float32)
    offset = np.zeros((ROWS, 1), np.float32)
    f32 = (weight.astype(np.float32) - offset) * scale
    assert f32.dtype == np.float32
    tensors = [("weight_scale", "F32", scale), ("weight_offset", "F32", offset), ("f32", "F32", f32), ("weight", "I8", weight)]
    write_safetensors(os.path.join(TRUTH, "modelslim.safetensors"), tensors, {"source": "NumPy"})


main()
