"""Files of tensors, read and written."""

from __future__ import annotations

import collections.abc
import ctypes as C
import os
import typing

import numpy as np

from . import _c
from ._call import Closing, Handle, check, path_bytes
from ._library import library

NATIVE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2",
          "U8": "u1", "BOOL": "?"}
NAMES = {np.dtype(kind): name for name, kind in NATIVE.items()}


class TensorInfo(typing.NamedTuple):
    """What a file says of a tensor. quantized: its bytes are blocks of 32 or 256 numbers, as GGUF defines them."""

    name: str
    dtype: str  # "F32", "BF16", "F8_E4M3", "I64"; of a GGUF file also "Q8_0" and so on
    shape: tuple
    bytes: int
    file: str
    quantized: bool


class Tensors(Closing, collections.abc.Mapping):
    """The tensors at a path, by name: a safetensors file, a GGUF file, or the directory of a checkpoint, whose
    shards are one list. tensors[name] is a copy as a NumPy array: of the file's type where NumPy has it, else (BF16, F8_E4M3 without
    its scales, quantized types) as float32, exactly. Names are sorted. Threads may share it."""

    _closed = "the tensors are closed"

    def __init__(self, path):
        self._lib = library()
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_tensors_open(C.byref(pointer), path_bytes(path), None, C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_tensors_close)
        self._names, said = [], _c.vb_tensor()
        while self._lib.vb_tensors_at(pointer, len(self._names), C.byref(said)):
            self._names.append(said.name.decode())

    def __len__(self):
        return len(self._names)

    def __iter__(self):
        return iter(self._names)

    def _find(self, name):
        tensors, said = self._pointer(), _c.vb_tensor()
        if "\0" in name or not self._lib.vb_tensors_find(tensors, name.encode(), C.byref(said)):
            raise KeyError(name)
        return said

    def info(self, name: str) -> TensorInfo:
        said = self._find(name)
        return TensorInfo(name, said.dtype.decode(), tuple(said.shape[: said.ndim]), said.bytes, said.file.decode(), bool(said.quantized))

    def raw(self, name: str) -> bytes:
        """The bytes as the file has them."""
        said = self._find(name)
        return C.string_at(said.data, said.bytes)

    def __getitem__(self, name: str) -> np.ndarray:
        info = self.info(name)
        if info.dtype in NATIVE:
            return np.frombuffer(self.raw(name), NATIVE[info.dtype]).reshape(info.shape).copy()
        return self.float32(name)

    def float32(self, name: str, first: int = 0, rows: int | None = None) -> np.ndarray:
        """As float32; of its outermost dimension `rows` (None: all that are left) from `first` on."""
        said, err = self._find(name), _c.vb_error()
        shape = list(said.shape[: said.ndim])
        width = int(np.prod(shape[1:], dtype=np.int64))
        if said.ndim:
            if not 0 <= first <= shape[0] or not 0 <= (shape[0] - first if rows is None else rows) <= shape[0] - first:
                raise IndexError("rows %d to %s of %s, which has %d" % (first, "the end" if rows is None else first + rows, name, shape[0]))
            shape[0] = shape[0] - first if rows is None else rows
        out = np.empty(shape, np.float32)
        check(self._lib.vb_tensor_f32(C.byref(said), first * width, out.size, out.ctypes.data_as(C.POINTER(C.c_float)), C.byref(err)), err)
        return out

    def metadata(self, key: str) -> str | None:
        """A text of a safetensors file's __metadata__; None: there is none. Several files have none together."""
        text = self._lib.vb_tensors_metadata(self._pointer(), key.encode())
        return None if text is None else text.decode()



def write_tensors(path, tensors: collections.abc.Mapping):
    """Writes arrays by name as a safetensors file, which may not exist. It appears when it is whole."""
    arrays, list_of = [], (_c.vb_tensor * len(tensors))()
    for to, (name, value) in zip(list_of, tensors.items()):
        array = np.ascontiguousarray(value).reshape(np.shape(value))  # the first makes a number an array of one
        dtype = NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise TypeError("%s: safetensors files have no type for %s" % (name, array.dtype))
        array = array.astype(NATIVE[dtype], copy=False)
        if array.ndim > 4:
            raise ValueError("%s has %d dimensions, at most 4" % (name, array.ndim))
        arrays.append(array)
        to.name, to.dtype, to.ndim, to.data, to.bytes = name.encode(), dtype.encode(), array.ndim, array.ctypes.data, array.nbytes
        to.shape[: array.ndim] = array.shape
    err = _c.vb_error()
    part = "%s.%d.part" % (os.fspath(path), os.getpid())
    with open(part, "xb") as file:
        try:
            check(library().vb_tensors_write(file.fileno(), path_bytes(path), list_of, len(list_of), None, None, C.byref(err)), err)
            os.fsync(file.fileno())
            os.link(part, path)  # refuses a file that exists
        finally:
            os.unlink(part)
