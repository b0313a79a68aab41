#!/usr/bin/env python3
"""Write simd/grids.c and reference/grids.c: the grids (codebooks) of GGUF's IQ types, taken from the `gguf` package.

    make_grids.py           writes the files
    make_grids.py --check   exits with 1 if the files are not what this script writes

The grids are data of the llama.cpp project, which no formula gives. The package stores each number of a grid as an index of two
or three bits into a list of values (class attributes grid_hex and grid_map in gguf/quants.py), and expands them when it first
dequantizes. simd/ has them
expanded: a row of a grid is one integer, whose lowest byte is the row's first number. reference/ has the indices, as the package does.
"""
import os
import sys

import numpy as np
from gguf import quants

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GRIDS = [("grid_iq2_xxs", "IQ2_XXS"), ("grid_iq2_xs", "IQ2_XS"), ("grid_iq2_s", "IQ2_S"), ("grid_iq3_xxs", "IQ3_XXS"),
         ("grid_iq3_s", "IQ3_S"), ("grid_iq1", "IQ1_S")]
HEAD = '''/* {file} -- the grids of GGUF's IQ types, {form}.
 * golden/scripts/make_grids.py wrote this file; do not edit it.
 *
 * The numbers are those of the Python package gguf {version} (gguf/quants.py) of the llama.cpp project,
 * https://github.com/ggml-org/llama.cpp, which has this licence:
 *
{licence}
 */
#include "{header}"
'''
LICENCE = """MIT License

Copyright (c) 2023 Georgi Gerganov

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation
the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and
to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of
the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
DEALINGS IN THE SOFTWARE."""


def grid(name):
    kind = getattr(quants, name)
    kind.init_grid()
    return kind.grid.reshape(kind.grid_shape).astype(np.int8)


def table(name, kind):
    rows = grid(kind)
    if kind == "IQ1_S":
        rows = rows * 8  # IQ1_S adds 1/8 or -1/8: in eighths all are integers
    bits = 8 * rows.shape[1]
    words = rows.astype(np.int8).view(np.uint32 if bits == 32 else np.uint64).ravel()
    items = ["0x%0*x," % (bits // 4, w) for w in words]
    step = 4 if bits == 64 else 8
    lines = ["    " + " ".join(items[i:i + step]) for i in range(0, len(items), step)]
    return "\nconst uint%d_t %s[%d] = {\n%s\n};\n" % (bits, name, len(words), "\n".join(lines))


def indices(name, kind):
    """Eight indices of two bits in each integer, or four of four bits (IQ3)."""
    words = np.frombuffer(bytes.fromhex(getattr(quants, kind).grid_hex.decode()), np.uint16)
    lines = ["    " + " ".join("0x%04x," % w for w in words[i:i + 8]) for i in range(0, len(words), 8)]
    return "\nconst uint16_t ref_%s[%d] = {\n%s\n};\n" % (name, len(words), "\n".join(lines))


def head(file, form, header):
    licence = "\n".join((" *     " + line).rstrip() for line in LICENCE.split("\n"))
    return HEAD.format(file=file, form=form, header=header, version="0.19.0", licence=licence)


def files():
    expanded, packed = "".join(table(*g) for g in GRIDS), "".join(indices(*g) for g in GRIDS)
    return {"simd/grids.c": head("simd/grids.c", "expanded (grids.h)", "simd/grids.h") + expanded,
            "reference/grids.c": head("reference/grids.c", "as indices (blocks.c)", "reference/weights.h") + packed}


def main():
    for file, text in files().items():
        path = os.path.join(ROOT, file)
        if sys.argv[1:] != ["--check"]:
            with open(path, "w") as f:
                f.write(text)
        with open(path) as f:
            if f.read() != text:
                sys.exit(file + " is not what golden/scripts/make_grids.py writes")


if __name__ == "__main__":
    main()
