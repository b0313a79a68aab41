#!/usr/bin/env python3
"""What nvcc makes of the kernels, as PTX: no rounding that docs/ARITHMETIC.md does not allow.

    ptx.py [NVCC]     skipped where there is no nvcc

In the PTX, `mul.rn` and the like round to nearest, and ptxas does not merge them; without .rn it may. That nvcc itself merges no product and
sum into an fma is tested with a kernel that has both.
"""
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FLAGS = re.search(r"^NVCC_FLAGS := (.*)$", pathlib.Path("Makefile").read_text(), re.M)[1].split()
ROUNDED = re.compile(r"^\s*(?:@!?%p\d+\s+)?((?:mul|add|sub|fma|mad|div|sqrt|rcp)\.[a-z0-9.]*f(?:32|64))\b", re.M)


def complaints(ptx):
    """The instructions that do not round as they should."""
    found = []
    for line in ptx.splitlines():
        word = ROUNDED.match(line)
        if word and ".rn" not in word[1]:
            found.append(line.strip())
        elif re.search(r"\.(ftz|approx|full)\b", line.split("//")[0]):
            found.append(line.strip())
        elif re.match(r"\s*(ex2|lg2|sin|cos|tanh|rsqrt)\.", line):
            found.append(line.strip())
    return found


def compiled(nvcc, source, flags):
    """For a GPU that uses all that the kernels can use, if this nvcc knows one."""
    known = subprocess.run([nvcc, "--list-gpu-code"], check=True, capture_output=True, text=True).stdout
    kind = "compute_90" if "sm_90" in known.split() else "compute_80"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([nvcc, *flags, f"-arch={kind}", "-ptx", "-o", f"{folder}/ptx", source], check=True)
        return pathlib.Path(folder, "ptx").read_text()


def main():
    nvcc = sys.argv[1] if len(sys.argv) > 1 else shutil.which("nvcc") or next(iter(glob.glob("/usr/local/cuda/bin/nvcc")), None)
    if not nvcc:
        print("skipped: no nvcc here; not tested: what nvcc makes of the kernels")
        return 0
    bad = 0
    # what this test finds, it must find in a kernel that does everything wrong
    with tempfile.TemporaryDirectory() as folder:
        wrong = pathlib.Path(folder, "wrong.cu")
        wrong.write_text('extern "C" __global__ void f(float *x) { x[0] = __expf(x[1]) / x[2] + sqrtf(x[3]); }\n')
        if len(complaints(compiled(nvcc, str(wrong), ["-use_fast_math"]))) < 3:
            print("a kernel with fast math is not noticed")
            bad += 1
        plain = pathlib.Path(folder, "plain.cu")
        plain.write_text('extern "C" __global__ void f(float *x) { x[0] = x[1] * x[2] + x[3]; }\n')
        ptx = compiled(nvcc, str(plain), FLAGS)
        if "mul.rn.f32" not in ptx or "add.rn.f32" not in ptx or "fma." in ptx:
            print("Makefile: with NVCC_FLAGS, x * y + z does not round twice")
            bad += 1
    sources = sorted(glob.glob("ops/cuda/*.cu"))
    if turn := os.environ.get("VERBATIM_TURN"):  # of `make test`: a third of the files (tests/support/turn.h)
        sources = sources[int(turn) % 3::3]
    for source in sources:
        ptx = compiled(nvcc, source, FLAGS)
        for line in complaints(ptx):
            print(f"{source}: {line}")
            bad += 1
    print(f"[  {'FAILED' if bad else 'PASSED'}  ] {len(sources)} test(s).")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
