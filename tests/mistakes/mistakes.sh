#!/bin/sh
# Do the tests notice? Runs each line of tests/mistakes/mistakes.txt twice in the mistakes build: with the mistake its test must
# fail, and fail by saying so, not by a crash; without, it must pass. Every mistake of ops/mistake.h must have a line.
# A test that passes and says what this CPU cannot show is skipped.
#   mistakes.sh BUILD [MISTAKE...]     all of them, if none is named
set -u
programs=$1/tests
shift
log=$(mktemp)
trap 'rm -f "$log" "$log.passed"' EXIT
: >"$log.passed"
bad=0 caught=0 skipped=0

complain() { # WHAT: with the log of the run
    sed 's/^/    /' "$log"
    echo "WRONG   $1"
    bad=1
}

said() { grep -qF "$1" "$log"; }

try() { # MISTAKE TEST PROGRAM [ARGUMENT...]
    mistake=$1 test=$2
    shift 2
    program=$programs/$1
    name=$1
    shift
    if ! grep -qxF "$name $test" "$log.passed"; then
        if VERBATIM_TEST=$test "$program" "$@" >"$log" 2>&1 && said "[  PASSED  ] 1 test(s)"; then
            echo "$name $test" >>"$log.passed"
        else
            complain "$name: $test does not pass without a mistake"
            return
        fi
    fi
    VERBATIM_MISTAKE=$mistake VERBATIM_TEST=$test "$program" "$@" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ] && grep -q '^skipped: ' "$log"; then
        echo "skipped: $mistake: $name: $(sed -n 's/^skipped: //p' "$log" | tail -1)"
        skipped=$((skipped + 1))
    elif [ $status -eq 0 ]; then
        complain "$mistake: $name: $test does not notice"
    elif [ $status -ne 1 ] || ! said "[  FAILED  ] $test" || said "failed with exception"; then
        complain "$mistake: $name: it ended with status $status, not by $test failing"
    else
        printf 'caught  %-26s %s: %s\n' "$mistake" "$name" "$test"
        sed -n 's/^ERROR: /            /p; s/^\[  ERROR   \] --- \([^[]\)/            \1/p' "$log" | head -1 | cut -c1-150
        caught=$((caught + 1))
    fi
}

any=$(awk '/^[a-z]/ { print $3; exit }' tests/mistakes/mistakes.txt)
for known in $(VERBATIM_MISTAKE=list "$programs/$any"); do
    grep -q "^$known " tests/mistakes/mistakes.txt || complain "$known has no line in tests/mistakes/mistakes.txt"
done
while read -r mistake test command; do
    case "$mistake" in '' | '#'*) continue ;; esac
    case " ${*:-$mistake} " in *" $mistake "*) ;; *) continue ;; esac
    # shellcheck disable=SC2086
    try "$mistake" "$test" $command </dev/null
done <tests/mistakes/mistakes.txt
echo "[  PASSED  ] $caught test(s): mistakes that were noticed, by $(wc -l <"$log.passed") tests that pass without them"
[ $bad -eq 0 ] && [ $((caught + skipped)) -gt 0 ]
