#!/bin/sh
# tests/layers.sh [BUILD] -- does tools/scripts/layers notice? What must not be is planted in a copy of the tree; the check must
# fail and name it all. BUILD has the objects.
set -eu
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0

# A copy of the tree, with links to the objects.
tree=$work/tree
mkdir -p "$tree/golden" "$tree/objects"
cp -Rp numbers engine ops simd reference tools tests "$tree"
cp -p golden/*.h "$tree/golden"
for folder in engine ops simd reference tools; do
    cp -Rs "$build/$folder" "$tree/objects"
done
check() { (cd "$tree" && tools/scripts/layers objects >"$work/log" 2>&1); }
fail() { sed 's/^/    /' "$work/log"; echo "FAILED: $1" >&2; exit 1; }

check || fail "the tree as it is"
tests=$((tests + 1))

plant() { # FILE WHAT TEXT, from the standard input: text of a file that the check must complain of by saying TEXT
    mkdir -p "$(dirname "$tree/$1")"
    cat >>"$tree/$1"
    printf '%s\t%s\n' "$2" "$3" >>"$work/planted"
}
noticed() { # LINES: the check fails and says all that was planted, in so many lines
    ! check || fail "nothing is noticed"
    while IFS="$(printf '\t')" read -r what text; do
        grep -qF "$text" "$work/log" || fail "$what: it does not say $text"
        tests=$((tests + 1))
        echo "ok: $what"
    done <"$work/planted"
    [ "$(grep -c . "$work/log")" -eq "$1" ] || fail "it says more than that"
}

plant engine/sub/planted.c "a new folder of engine/ includes the command" "engine/sub/planted.c:1: includes tools/cli/cli.h" <<'END'
#include "tools/cli/cli.h"
END
plant engine/other/planted.c "a new folder of engine/ is not in the table" "the table has no folder engine/other" <<'END'
int nothing;
END
plant engine/base/planted.c "a lower folder includes a higher one" "does not let engine/base include engine/session" <<'END'
#include "engine/session/session.h"
END
plant tools/planted.c "the command includes an inner header" "tools/planted.c:1: includes engine/model/model_internal.h" <<'END'
#include "engine/model/model_internal.h"
END
plant engine/template/planted.c "an inner header of a folder below" "which is for its own folder only" <<'END'
#include "engine/text/tokenizer_internal.h"
END
plant tools/cli/planted.c "a tag that is defined twice" "the tag vb_session is defined in" <<'END'
struct vb_session { int nothing; };
END
plant engine/session/planted.c "an include from the folder" "is not a path from the repository's root" <<'END'
#include "session.h"
END
plant engine/choose/planted.c "a lower folder calls a higher one without including it" "engine/choose/planted.c: uses vb_is_end_token of engine/model/model.c" <<'END'
int vb_is_end_token(const void *, int); int planted(void); int planted(void) { return vb_is_end_token(0, 0); }
END
plant engine/files/planted.c "the library ends the process" "exit or abort inside the library" <<'END'
void planted_too(void); void planted_too(void) { exit(1); }
END
plant engine/verbatim_planted.h "a public macro without the prefix" "the public macro PLANTED does not begin with vb_ or VB_" <<'END'
#define VERBATIM_PLANTED_H
#define PLANTED 1
END
plant engine/verbatim_planted.h "a public tag without the prefix" "the public struct planted does not begin with vb_ or VB_" <<'END'
typedef struct planted { int inner; struct vb_planted *pointer; } vb_planted;
END
plant engine/verbatim_planted.h "a public type without the prefix" "the public name planted_type does not begin with vb_ or VB_" <<'END'
typedef enum vb_planted_kind { VB_PLANTED } planted_type;
END
plant engine/verbatim_planted.h "a public enumerator without the prefix" "the public enumerator PLANTED_TWO does not begin with vb_ or VB_" <<'END'
enum vb_planted_number { VB_PLANTED_ONE = 1, PLANTED_TWO };
END
plant engine/verbatim_planted.h "a public function without the prefix" "the public name planted_call does not begin with vb_ or VB_" <<'END'
int planted_call(int (*callback)(void), vb_planted *out);
static inline int vb_planted_call(int value) { if (value) { return value; } return 1; }
END
plant engine/verbatim_planted.h "a public callback without the prefix" "the public name planted_back does not begin with vb_ or VB_" <<'END'
typedef void (*planted_back)(void *context);
END
printf '/* %114s */\n/* %115s */\n' x x |
    plant ops/planted.c "a line of 121 columns, and none of 120" "ops/planted.c:2: a line has 121 columns"
cp -p "$tree/engine/pass/layer.c" "$work/layer.c"
plant engine/pass/layer.c "a layer that asks for a device" "ranks, devices and observers are outside of this file" <<'END'
static int planted(const struct pass *p) { return p->cx.device != 0; }
END
touch -r "$work/layer.c" "$tree/engine/pass/layer.c" # no object is older
${CC:-gcc} -c -o "$tree/objects/engine/choose/planted.o" "$tree/engine/choose/planted.c"
noticed 20
cp -p "$work/layer.c" "$tree/engine/pass/layer.c"
rm -rf "$work/planted" "$tree/engine/sub" "$tree/engine/other" "$tree"/engine/verbatim_planted.h "$tree"/*/planted.c "$tree"/*/*/planted.c "$tree"/objects/*/*/planted.o

sed 's,^engine/base: *,&engine/session ,' tools/scripts/layers.table |
    plant tools/scripts/other.table "two folders need each other" "the table has a cycle: engine/base -> engine/session -> engine/base"
mv "$tree/tools/scripts/other.table" "$tree/tools/scripts/layers.table"
echo "tools/main.c -> engine/base/json.h" |
    plant tools/scripts/layers.table "an exception that nothing needs" "tools/main.c -> engine/base/json.h is no longer needed"
noticed 2
echo "[  PASSED  ] $tests tests."
