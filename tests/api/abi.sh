#!/bin/sh
# tests/api/abi.sh [--write] [BUILD] -- do programs that were compiled with an earlier version of this soname still run?
# abidiff compares the functions and structs of the shared library with the description in libverbatim.abi. New functions
# are no difference. A member that was appended to a struct is one: see engine/base/options.h, then write the description
# anew with --write. Needs abigail-tools and debugging information (-g).
set -eu
cd "$(dirname "$0")/../.."
write=
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
build=${1:-build}
stored=tests/api/libverbatim.abi
if ! command -v abidiff >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo "skipped: abidiff is not installed, or this is not x86-64"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp engine/verbatim*.h "$work" # only what they declare counts
describe() { # FILE
    abidw --headers-dir "$work" --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path \
        --no-show-locs --no-elf-needed --no-parameter-names --type-id-style hash --out-file "$1" "$build/libverbatim.so.0"
}
differ() { # FILE: whether the library is another one than the description says
    ! abidiff --no-added-syms --leaf-changes-only "$1" \
        "$build/libverbatim.so.0" >"$work/log" 2>&1
}

if [ "$write" ]; then
    describe "$stored"
    exit
fi
if differ "$stored"; then
    cat "$work/log"
    echo "FAILED: the library is not compatible with $stored" >&2
    exit 1
fi
echo "ok: the library is compatible with the description"
# a member at another place, and a function that is gone, are noticed
sed "/name='vb_sampling'/,/<\/class-decl>/s/layout-offset-in-bits='32'/layout-offset-in-bits='64'/" "$stored" >"$work/moved"
sed "s/name='vb_vocab_size' version/name='vb_vocab_count' version/" "$stored" >"$work/gone"
for planted in moved gone; do
    ! cmp -s "$stored" "$work/$planted" || { echo "FAILED: nothing was planted" >&2; exit 1; }
    differ "$work/$planted" || { echo "FAILED: a difference is not noticed: $planted" >&2; exit 1; }
    echo "ok: a difference is noticed: $planted"
done
echo "[  PASSED  ] 3 tests."
