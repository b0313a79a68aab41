"""Runs the command on a GPU that is an emulator, for tests that are called as PROGRAM VERBATIM [TEST...]. VERBATIM is build/tests/cuda/verbatim; beside it are the
driver and the library of matrix products that are none (fake_driver.c, fake_cublas.c)."""
import json
import os
import pathlib
import struct
import subprocess
import sys

VERBATIM = sys.argv[1]
HERE = os.path.dirname(os.path.abspath(VERBATIM))


def run(*arguments, gpu=None, cublas=None, libraries=HERE):
    """gpu and cublas: what the driver and the library do (FAKE_GPU, FAKE_CUBLAS). libraries: their folder."""
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "FAKE_GPU": gpu or "", "FAKE_CUBLAS": cublas or ""}
    return subprocess.run([VERBATIM, *arguments], capture_output=True, text=True, timeout=300, env=environment)


def output(*arguments, **how):
    ran = run(*arguments, **how)
    assert ran.returncode == 0, f"{arguments}: {ran.returncode} {ran.stderr}"
    return ran.stdout


def generated(*arguments, **how):
    return json.loads(output("generate", *arguments, "--json", **how))


def refused(part, *arguments, codes, **how):
    """The command ends with one of the codes and one sentence, which has this part."""
    ran = run(*arguments, **how)
    errors = [line for line in ran.stderr.splitlines() if line.startswith("verbatim: ")]
    assert ran.returncode in codes and len(errors) == 1 and part in errors[0], f"{arguments} {how}: {ran.returncode} {ran.stderr}"


def logits_of(path):
    """The logits in a file of `verbatim logits`."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])["logits"]
    begin, end = (8 + size + at for at in header["data_offsets"])
    return struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])


def rms_distance(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / len(a)) ** 0.5
