"""Finds libverbatim and loads it."""

import ctypes as C
import functools
import os
import pathlib

from . import _c, _functions

SONAME = "libverbatim.so.0"


def candidates():
    """The paths to try, in order. If VERBATIM_LIBRARY is set, it is the only one."""
    named = os.environ.get("VERBATIM_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    places = [str(here / "lib" / SONAME), str(here / SONAME)]  # the first: a wheel
    if len(here.parents) > 2 and (here.parents[2] / "engine" / "verbatim.h").exists():  # the package lies in its repository
        places.append(str(here.parents[2] / "build" / SONAME))
    return places + [SONAME]  # the system's, by the loader's own rules


@functools.lru_cache(maxsize=None)
def library():
    """The library, loaded once. If it cannot be loaded, the OSError lists the paths that were tried."""
    tried = []
    for place in candidates():
        try:
            lib = C.CDLL(place)
            lib.vb_version.restype = C.c_char_p
            version = lib.vb_version().decode()
        except (OSError, AttributeError) as e:
            tried.append(str(e) if place in str(e) else "%s: %s" % (place, e))
            continue
        if version != _c.VERSION:
            raise OSError("%s is version %s, these bindings are for %s" % (place, version, _c.VERSION))
        for name, (result, arguments) in _functions.FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        return lib
    raise OSError("no Verbatim library; tried %s. `make` builds it; VERBATIM_LIBRARY names another one" % "; ".join(tried))
