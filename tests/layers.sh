#!/bin/sh
# tests/layers.sh [BUILD] -- does tools/scripts/layers notice? What must not be is planted in a copy of the tree, one thing at a
# time; the check must fail and name it. BUILD has the objects.
set -eu
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0

# A copy of the tree, with links to the objects.
tree=$work/tree
mkdir -p "$tree/golden" "$tree/objects"
cp -Rp engine ops simd reference tools tests "$tree"
cp -p golden/*.h "$tree/golden"
for folder in engine ops simd reference tools; do
    cp -Rs "$build/$folder" "$tree/objects"
done
check() { (cd "$tree" && tools/scripts/layers objects >"$work/log" 2>&1); }
fail() { sed 's/^/    /' "$work/log"; echo "FAILED: $1" >&2; exit 1; }

check || fail "the tree as it is"
tests=$((tests + 1))

noticed() { # WHAT TEXT: the check fails and says TEXT; then what was planted is taken away
    ! check || fail "$1: not noticed"
    grep -qF "$2" "$work/log" || fail "$1: it does not say $2"
    [ "$(grep -c . "$work/log")" -le 3 ] || fail "$1: it says more than that"
    rm -rf "$tree/engine/sub" "$tree"/*/planted.c "$tree"/*/*/planted.c "$tree"/objects/*/*/planted.o
    cp tools/scripts/layers.table "$tree/tools/scripts"
    tests=$((tests + 1))
    echo "ok: $1"
}
plant() { # FILE, from the standard input
    mkdir -p "$(dirname "$tree/$1")"
    cat >"$tree/$1"
}
table() { # what sed makes of the table
    sed "$1" tools/scripts/layers.table >"$tree/tools/scripts/layers.table"
}

echo '#include "tools/cli/cli.h"' | plant engine/sub/planted.c
noticed "a new folder of engine/ includes the command" "engine/sub/planted.c:1: includes tools/cli/cli.h"

mkdir "$tree/engine/sub"
echo 'int nothing;' | plant engine/sub/planted.c
noticed "a new folder of engine/ is not in the table" "the table has no folder engine/sub"

echo '#include "engine/session/session.h"' | plant engine/base/planted.c
noticed "a lower folder includes a higher one" "does not let engine/base include engine/session"

echo '#include "engine/model/model_internal.h"' | plant tools/planted.c
noticed "the command includes an inner header" "tools/planted.c:1: includes engine/model/model_internal.h"

echo '#include "engine/text/tokenizer_internal.h"' | plant engine/template/planted.c
noticed "an inner header of a folder below" "which is for its own folder only"

echo 'struct vb_session { int nothing; };' | plant tools/planted.c
noticed "a tag that is defined twice" "the tag vb_session is defined in"

echo '#include "session.h"' | plant engine/session/planted.c
noticed "an include from the folder" "is not a path from the repository's root"

echo 'int vb_is_end_token(const void *, int); int planted(void); int planted(void) { return vb_is_end_token(0, 0); }' |
    plant engine/base/planted.c
${CC:-gcc} -c -o "$tree/objects/engine/base/planted.o" "$tree/engine/base/planted.c"
noticed "a lower folder calls a higher one without including it" "engine/base/planted.c: uses vb_is_end_token of engine/model/model.c"

echo 'void planted(void); void planted(void) { exit(1); }' | plant engine/base/planted.c
noticed "the library ends the process" "exit or abort inside the library"

table 's,^engine/base: *,&engine/session ,'
noticed "two folders need each other" "the table has a cycle: engine/base -> engine/session -> engine/base"

echo "tools/main.c -> engine/base/json.h" >>"$tree/tools/scripts/layers.table"
noticed "an exception that nothing needs" "tools/main.c -> engine/base/json.h is no longer needed"

check || fail "the tree as it was"
echo "[  PASSED  ] $tests tests."
