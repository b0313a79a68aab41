"""Calling C, and being called from it: errors as exceptions, callbacks that may raise, memory that outlives its users."""

import ctypes as C
import os
import sys
import threading
import weakref

import numpy as np

from . import _c


class VerbatimError(Exception):
    """What the library refuses, in its own sentence. `code` is a verbatim.Code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = _c.Code(code)

    def __reduce__(self):  # pytest-xdist and multiprocessing send exceptions
        return type(self), (self.code, str(self))


def check(code, err):
    if code:
        raise VerbatimError(code, err.message.decode("utf-8", "replace"))


class Handle:
    """A C object, freed once: by close, or when nobody refers to it. `keep` is what it needs until then."""

    def __init__(self, pointer, free, *keep):
        self.pointer = pointer
        self._free = weakref.finalize(self, _free, free, pointer, keep)

    def close(self):
        self.pointer = None
        self._free()


def _free(free, pointer, keep):
    free(pointer)


class Closing:
    """A context manager with a C object in self._handle until close, and in self._closed what is said after that."""

    def close(self):
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def _pointer(self):
        if not self._handle.pointer:
            raise ValueError(self._closed)
        return self._handle.pointer


class Guard:
    """The callbacks of one session. ctypes swallows what they raise; here the first exception is kept, later callbacks
    do nothing but ask C to stop, and `with guard:` raises it at its end.

    A signal's exception (Ctrl-C) can also arise on the way into a callback, before its first line, where no `try` can
    be: Python then tells sys.unraisablehook, which is ours meanwhile. Signals come to the main thread alone."""

    def __init__(self):
        self.raised = None
        self._busy = threading.Lock()

    def callback(self, kind, function, stop=None):
        """A ctypes callback that calls function without its first argument, the context; `stop` is returned to end the run."""

        def call(*arguments):
            try:
                if self.raised is None:
                    return function(*arguments[1:])
            except BaseException as e:  # also KeyboardInterrupt
                self.raised = e
            return stop

        return kind(call)

    def _unraisable(self, what):
        if "ctypes callback" in (what.err_msg or ""):
            self.raised = self.raised or what.exc_value
        else:
            self._hook(what)

    def __enter__(self):
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this session is computing; it can be used when that has ended")
        self.raised = self._hook = None
        if threading.current_thread() is threading.main_thread():
            self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *unused):
        if self._hook:
            sys.unraisablehook = self._hook
        raised, self.raised = self.raised, None
        self._busy.release()
        if raised is not None:
            raise raised


class BatchGuard(Guard):
    """The callbacks of a batch, whose requests go on when one of them raises: each is called all the same, and the first exception is
    kept. A signal's exception on the way into a callback gives the pass up (`stop`)."""

    def __init__(self):
        super().__init__()
        self.interrupted = False

    def callback(self, kind, function, stop=None):
        def call(*arguments):
            try:
                if kind is _c.stop_callback and self.interrupted:
                    return stop
                return function(*arguments[1:])
            except BaseException as e:  # also KeyboardInterrupt
                self.raised = self.raised or e
            return stop

        return kind(call)

    def _unraisable(self, what):
        super()._unraisable(what)
        self.interrupted = self.raised is not None

    def __enter__(self):
        super().__enter__()
        self.interrupted = False
        return self


def path_bytes(path):
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("a path with a null character")
    return name


def ids_array(tokens):
    """Token ids as the array that C takes."""
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError("tokens: wanted a sequence of integers, got %s of shape %s" % (ids.dtype, ids.shape))
    if ids.size and (ids.min() < -(2**31) or ids.max() >= 2**31):
        raise ValueError("token %d does not fit into 32 bits" % next(t for t in ids.tolist() if not -(2**31) <= t < 2**31))
    return np.ascontiguousarray(ids, dtype=np.int32)


def ids_pointer(ids):
    return ids.ctypes.data_as(C.POINTER(C.c_int32))


def choices_array(name, choices, last):
    array = np.asarray(choices)
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise TypeError("%s: wanted integers of shape [tokens, layers, %s], got %s of shape %s" % (name, last, array.dtype, list(array.shape)))
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError("%s: a number does not fit into 32 bits" % name)
    return np.ascontiguousarray(array, dtype=np.int32)


def routes_of(routes, kept_sets=None):
    """Forced routes, integers [tokens, layers, top_k], and kept sets, [tokens, layers, index_topk], for C; None: none. The struct keeps
    its arrays alive."""
    told = _c.vb_routes()
    if routes is not None:
        told.arrays = [choices_array("routes", routes, "top_k")]
        told.experts = ids_pointer(told.arrays[0])
        told.tokens, told.layers, told.top_k = told.arrays[0].shape
    if kept_sets is not None:
        kept = choices_array("kept_sets", kept_sets, "index_topk")
        if routes is not None and kept.shape[:2] != told.arrays[0].shape[:2]:
            raise ValueError("routes and kept_sets are of [tokens, layers] %s and %s" % (told.arrays[0].shape[:2], kept.shape[:2]))
        told.arrays = [*getattr(told, "arrays", []), kept]
        told.kept = ids_pointer(kept)
        told.tokens, told.layers, told.index_topk = kept.shape
    return told


def routes_arrays(routes):
    """The experts and the kept sets of C's routes as arrays of their own; None: not recorded."""
    return [np.ctypeslib.as_array(numbers, (routes.tokens, routes.layers, width)).copy() if numbers and routes.tokens else
            np.zeros((0, routes.layers, width), np.int32) if numbers else None
            for numbers, width in ((routes.experts, routes.top_k), (routes.kept, routes.index_topk))]


def view(address, shape, strides, dtype, keep=None):
    """Memory of C's as an array; strides in elements. Valid as long as C says. The array keeps `keep` alive."""
    size = 1 + sum((n - 1) * step for n, step in zip(shape, strides))
    memory = (C.c_char * (4 * size)).from_address(address)
    memory.keep = keep
    return np.ndarray(shape, dtype, buffer=memory, strides=[4 * step for step in strides])


def copy_row(row, pointer):
    """row[:] = pointer[:len(row)], for float32"""
    C.memmove(row.ctypes.data, pointer, 4 * row.size)
