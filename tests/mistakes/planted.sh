#!/bin/sh
# tests/mistakes/planted.sh [BUILD] -- does tests/mistakes/mistakes.py notice faults of its list? It must refuse them, and say why.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0 bad=0

try() { # [OPTION...]: the list that is in $work
    tests/mistakes/mistakes.py --list "$work/list" --copies "$work" --build "$build" "$@" >"$work/log" 2>&1 && accepted=1 || accepted=0
}
says() { # WHAT TEXT: the list was refused, and TEXT was said
    tests=$((tests + 1))
    if [ $accepted = 1 ] || ! grep -qF "$2" "$work/log"; then
        sed 's/^/    /' "$work/log"
        echo "FAILED: $1: it does not fail by saying: $2"
        bad=1
    else
        echo "ok: $1"
    fi
}
entry() { # NAME TEXT REPLACEMENT [TEST [SED]]: a mistake in config.c, as sed changes it
    printf 'mistake %s: of this test\nfile engine/model/config.c\n- %s\n+ %s\ntest test_config: %s\n' "$1" "$2" "$3" \
        "${4:-$test}" | sed "${5:-}"
}
listed() { entry planted "$@" >"$work/list"; }
refused() { # WHAT TEXT: by --check, which makes no mistake
    try --check
    says "$@"
}

test=layers_are_dense_first_and_then_sparse
right='layer >= c->first_k_dense_replace &&'
listed 'layer >= c->first_j_dense_replace &&' 'layer'
refused "a text that is not there" "it is there 0 times"
listed 'return' 'return'
refused "a text that is there more than once" "exactly once"
listed "$right" "$right" $test 's/config\.c/confog.c/'
refused "a file that is not there" "there is no such file"
listed "$right" "$right" $test '/^test/d'
refused "a mistake without a test" "needs a substitution and a test"
listed "$right" "$right" $test 's/^file/fail/'
refused "a line without a meaning" "this line has no meaning here"

# These are made, all in one copy of the tree.
{
    entry none "$right" "c->first_k_dense_replace <= layer &&"
    entry crashing "$right" "*(volatile int *)8 &&"
    entry misspelt "$right" "layr"
    entry untested "$right" "layer >" no_such_test
    entry of_the_command 'return k >= range[0].least' 'return layr' a_scale_near_a_power_of_two_is_a_tie \
        's,engine/model/config.c,tools/diff/scales.c,; s/test_config/test_diff_indexer/'
} >"$work/list"
try --jobs 1
says "a mistake that is none" "none: test_config: $test does not notice"
says "a mistake that crashes" "crashing: test_config: it ended with status"
says "a mistake that does not compile" "misspelt: the tree with this mistake does not compile"
says "a test that is not there" "no_such_test does not pass without a mistake"
says "a mistake in the command that a C test runs" "of_the_command: the tree with this mistake does not compile"
[ $bad -eq 0 ] && echo "[  PASSED  ] $tests test(s)."
exit $bad
