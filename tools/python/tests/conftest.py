"""Where the repository is, its command, and the files it writes."""

import json
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
PROMPT = list(range(1, 21))
DTYPES = {"F32": np.float32, "I32": np.int32}


def path(name):
    return ROOT / "golden" / name


def run(*arguments):
    """The `verbatim` command's JSON. One thread: the same bits, and no waiting for another beside other tests."""
    threads = ["--threads", "1"] if arguments[0] != "tokenize" else []
    command = [str(BUILD / "verbatim"), *map(str, arguments), *threads, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=600)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def joined(tokens):
    return ",".join(map(str, tokens))


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, t in json.loads(raw[8 : 8 + size]).items():
        begin, end = (8 + size + offset for offset in t["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def assert_same_bits(ours, theirs, what=""):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (what, ours.shape, ours.dtype, theirs.shape, theirs.dtype)
    assert np.array_equal(ours.view(np.int32), theirs.view(np.int32)), what


@pytest.fixture(scope="session")
def models():
    import verbatim

    opened = {}

    def model(name):
        if name not in opened:
            opened[name] = verbatim.Model(ROOT / "golden" / name)
        return opened[name]

    return model
