#!/bin/sh
# Runs test programs one after another and ends with a summary. A program says what it checked in cmocka's words, or in
# its own; what counts is its exit status. The log of a program that fails is shown whole.
#   run.sh [-l LOGS] [NAME:]COMMAND...     each a program with its arguments: "arm64/checkasm:qemu-aarch64 ... --quick"
set -u
logs=build/logs
if [ "$1" = -l ]; then
    logs=$2
    shift 2
fi
programs=0 failed=0 tests=0 skipped=0 names=""
for program in "$@"; do
    case $program in
    *:*) name=${program%%:*} command=${program#*:} ;;
    *) name=$(basename "${program%% *}") command=$program ;;
    esac
    log="$logs/$name.log"
    mkdir -p "$(dirname "$log")"
    start=$(date +%s)
    $command >"$log" 2>&1
    status=$?
    seconds=$(($(date +%s) - start))
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{s += $1} END {print s + 0}')
    skips=$(grep -cE '^\[  SKIPPED \] [a-z]|^skipped: ' "$log")
    programs=$((programs + 1)) tests=$((tests + passed)) skipped=$((skipped + skips))
    if [ $status -eq 0 ]; then
        printf 'ok      %-28s %4d s  %s tests, %s skipped\n' "$name" "$seconds" "$passed" "$skips"
    else
        failed=$((failed + 1)) names="$names $name"
        cat "$log"
        printf 'FAILED  %-28s %4d s  exit status %d\n' "$name" "$seconds" "$status"
    fi
done
if [ $failed -eq 0 ]; then
    echo "summary: $programs programs, $tests tests passed, $skipped skipped, none failed"
else
    echo "summary: $programs programs, $tests tests passed, $skipped skipped, $failed programs FAILED:$names"
    exit 1
fi
