"""tests/foreign/arithmetic.py -- the arithmetic of real engines, simulated in float32: where they round, and in which order they add."""

import numpy as np

from files import bf16_bits, from_bf16

F32 = np.float32


def to_bf16(x):
    return from_bf16(bf16_bits(x))


def to_f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(F32)


def to_tf32(x):
    """10 bits of mantissa, the exponents of f32."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(F32)


def same(x):
    return np.asarray(x, F32)


# Each order of summation is one that engines use. x [rows, K], w [out, K]; all of them add in float32.
def blas(x, w):
    return x @ w.T


def backwards(x, w):
    return x[:, ::-1] @ w[:, ::-1].T


def one_by_one(x, w):
    return (x.T[:, :, None] * w.T[:, None, :]).sum(axis=0, dtype=F32)


def split_k(x, w, parts=4):
    cuts = np.array_split(np.arange(x.shape[1]), min(parts, x.shape[1]))
    total = x[:, cuts[-1]] @ w[:, cuts[-1]].T
    for cut in cuts[-2::-1]:
        total = total + x[:, cut] @ w[:, cut].T
    return total


ORDERS = [blas, backwards, one_by_one, split_k]


class Arithmetic:
    """name: f32, bf16, f16, tf32 (products of tf32, everything else f32), fp8 (weights in FP8, converted to BF16; the rest bf16)"""

    def __init__(self, name, order=blas):
        self.name, self.order = name, order
        self.dtype = {"bf16": "BF16", "fp8": "BF16", "f16": "F16"}.get(name, "F32")
        self.store = {"BF16": to_bf16, "F16": to_f16, "F32": same}[self.dtype]
        self.factor = to_tf32 if name == "tf32" else same

    def linear(self, x, w):
        """Before the result is rounded."""
        if not len(x):
            return np.zeros((0, len(w)), F32)
        return self.order(self.factor(x), self.factor(w)).astype(F32)

    def einsum(self, how, a, b):
        return np.einsum(how, self.factor(a), self.factor(b)).astype(F32)
