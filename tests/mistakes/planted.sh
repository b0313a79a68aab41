#!/bin/sh
# tests/mistakes/planted.sh [BUILD] -- does tests/mistakes/mistakes.py notice? Lists with a fault each; it must refuse them, and say why.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0 bad=0

refused() { # WHAT TEXT [OPTION]: the list that `listed` wrote
    tests=$((tests + 1))
    if tests/mistakes/mistakes.py --list "$work/list" --copies "$work" --build "$build" ${3:-} >"$work/log" 2>&1 || ! grep -qF "$2" "$work/log"; then
        sed 's/^/    /' "$work/log"
        echo "FAILED: $1: it does not fail by saying: $2"
        bad=1
    else
        echo "ok: $1"
    fi
}
listed() { # TEXT REPLACEMENT [TEST [SED]]: a list of one mistake in config.c, as sed changes it
    printf 'mistake planted: of this test\nfile engine/model/config.c\n- %s\n+ %s\ntest test_config: %s\n' "$1" "$2" \
        "${3:-$test}" | sed "${4:-}" >"$work/list"
}

test=layers_are_dense_first_and_then_sparse
right='layer >= c->first_k_dense_replace &&'
listed 'layer >= c->first_j_dense_replace &&' 'layer'
refused "a text that is not there" "it is there 0 times" --check
listed 'return' 'return'
refused "a text that is there more than once" "exactly once" --check
listed "$right" "$right" $test 's/config\.c/confog.c/'
refused "a file that is not there" "there is no such file" --check
listed "$right" "$right" $test '/^test/d'
refused "a mistake without a test" "needs a substitution and a test" --check
listed "$right" "$right" $test 's/^file/fail/'
refused "a line without a meaning" "this line has no meaning here" --check
listed "$right" "c->first_k_dense_replace <= layer &&"
refused "a mistake that is none" "does not notice"
listed "$right" "*(volatile int *)8 &&"
refused "a mistake that crashes" "not by $test failing"
listed "$right" "layr"
refused "a mistake that does not compile" "does not compile"
listed "$right" "layer >" no_such_test
refused "a test that is not there" "does not pass without a mistake"
listed 'return k >= range[0].least' 'return layr' a_scale_near_a_power_of_two_is_a_tie \
    's,engine/model/config.c,tools/diff/scales.c,; s/test_config/test_diff_indexer/'
refused "a mistake in the command that a C test runs" "does not compile"
[ $bad -eq 0 ] && echo "[  PASSED  ] $tests test(s)."
exit $bad
