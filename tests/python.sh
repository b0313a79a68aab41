#!/bin/sh
# The Python package: its tests, the example of a backend's pytest, and what `pip install` makes of it.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=
for p in ${PYTHON:-python3 /usr/bin/python3}; do # another Python than Debian's may come first and have no NumPy
    if [ -z "$python" ] && "$p" -c 'import numpy, pytest' 2>/dev/null; then python=$p; fi
done
if [ -z "$python" ]; then
    echo "python.sh: no Python with numpy and pytest; tools/scripts/install-deps.sh test installs them" >&2
    exit 1
fi
export PYTHONDONTWRITEBYTECODE=1

pytest() { # what remains are its arguments
    "$python" -m pytest -q -p no:cacheprovider "$@" >"$work/log" 2>&1 && status=0 || status=$?
    cat "$work/log"
    [ "$status" -eq 0 ] || exit "$status"
    sed -n 's/^\([0-9]*\) passed.*/[  PASSED  ] \1 tests./p' "$work/log"
    sed -n 's/^.* \([0-9]*\) skipped.*/skipped: \1 of them/p' "$work/log"
}
PYTHONPATH="$(pwd)/tools/python"
export PYTHONPATH
if [ -n "${BUILD:-}" ]; then # else the package finds build/ itself
    VERBATIM_LIBRARY="$(cd "$BUILD" && pwd)/libverbatim.so.0"
    export VERBATIM_LIBRARY
fi
pytest tools/python/tests
pytest examples
set -- v2-lite v2 v3 # other routers, no q_a_proj, FP8 weights
if [ -n "${VERBATIM_TURN:-}" ]; then shift $((VERBATIM_TURN % 3)); set -- "$1"; fi # of `make test`: one of them
for name; do
    MODEL="$(pwd)/golden/tiny/$name" pytest examples
done

# installed, without the network: the same example, with the library that VERBATIM_LIBRARY names
if "$python" -c 'import setuptools, wheel, pip' 2>/dev/null; then
    cp -R tools/python "$work/package" # building writes beside the sources
    "$python" -m pip install -q --no-index --no-build-isolation --no-deps --disable-pip-version-check --root-user-action=ignore \
        --target "$work/site" "$work/package"
    PYTHONPATH="$work/site"
    "$python" -c "import verbatim; assert verbatim.__file__.startswith('$work'), verbatim.__file__"
    [ -d "$work/site/verbatim-$(sed -n 's/^#define VB_VERSION "\(.*\)"/\1/p' engine/verbatim.h).dist-info" ] || { ls "$work/site"; exit 1; }
    VERBATIM_LIBRARY="$(cd "${BUILD:-build}" && pwd)/libverbatim.so.0"
    export VERBATIM_LIBRARY
    pytest examples

    # the wheel, in a fresh virtual environment that has only Debian's packages: it finds its own libraries
    unset VERBATIM_LIBRARY PYTHONPATH MAKEFLAGS
    make -s BUILD="${BUILD:-build}" PYTHON="$python" wheel >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$python" -m venv --without-pip --system-site-packages "$work/venv"
    "$python" -m pip --python "$work/venv/bin/python" install -q --no-index --no-deps --disable-pip-version-check --root-user-action=ignore "${BUILD:-build}"/wheel/*.whl
    cat >"$work/wheel.py" <<END
import verbatim
verbatim.Model("golden/tale")
libraries = {line.split()[-1] for line in open("/proc/self/maps") if any(name in line for name in ("libverbatim", "sleef", "pcre2", "jansson", "gomp"))}
assert len(libraries) >= 5 and all(path.startswith("$work/venv/") for path in libraries), libraries
END
    python=$work/venv/bin/python
    "$python" "$work/wheel.py"
    [ "$("$work/venv/bin/verbatim" --version)" = "verbatim $(sed -n 's/^#define VB_VERSION "\(.*\)"/\1/p' engine/verbatim.h)" ]
    LD_DEBUG=libs "$work/venv/lib/"python*/site-packages/verbatim/bin/verbatim --version 2>&1 >/dev/null | sed -n 's/.*calling init: //p' |
        grep -v -e "^$work" -e '/lib\(c\|m\)\.so' -e 'ld-linux' >"$work/outside" && { echo "the wheel's command loads libraries from elsewhere:"; cat "$work/outside"; exit 1; }
    pytest examples
else
    echo "skipped: pip install, without setuptools, wheel and pip"
fi
