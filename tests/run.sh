#!/bin/sh
# Runs test programs, as many at a time as there are cores, and ends with a summary. A program says what it checked in
# cmocka's words, or in its own; what counts is its exit status. The log of a program that fails is shown whole.
#   run.sh [-l LOGS] [NAME:]COMMAND...     each a program with its arguments: "arm64/checkasm:qemu-aarch64 ... --quick"
set -u

run_one() { # LOGS [NAME:]COMMAND: a line in LOGS/results
    case $2 in
    *:*) name=${2%%:*} command=${2#*:} ;;
    *) name=$(basename "${2%% *}") command=$2 ;;
    esac
    log="$1/$name.log"
    mkdir -p "$(dirname "$log")"
    start=$(date +%s)
    # A job in the background may have been started with SIGINT ignored, and one of nohup with SIGHUP. The tests of signals would
    # then wait forever. OpenMP's threads are not to spin while they wait: other tests need the cores.
    env --default-signal=INT,QUIT,HUP OMP_WAIT_POLICY=passive $command >"$log" 2>&1
    status=$?
    seconds=$(($(date +%s) - start))
    times >"$log.times" # of this shell, and in the second line of its children: user, system
    cpu=$(awk -F '[ms ]+' 'NR == 2 {printf "%.1f", 60 * $1 + $2 + 60 * $3 + $4}' "$log.times")
    rm "$log.times"
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{s += $1} END {print s + 0}')
    skips=$(grep -cE '^\[  SKIPPED \] [a-z]|^skipped: ' "$log")
    if [ $status -eq 0 ]; then
        printf 'ok      %-28s %4d s  (%s s of CPU)  %s tests, %s skipped\n' "$name" "$seconds" "$cpu" "$passed" "$skips"
    else
        { cat "$log"; printf 'FAILED  %-28s %4d s  exit status %d\n' "$name" "$seconds" "$status"; } >"$log.shown"
        cat "$log.shown" # in one piece, though others print beside it
    fi
    echo "$status $passed $skips $name $cpu" >>"$1/results"
}

if [ "$1" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi
logs=build/logs
if [ "$1" = -l ]; then
    logs=$2
    shift 2
fi
mkdir -p "$logs"
: >"$logs/results"
[ -z "${VERBATIM_TURN:-}" ] || echo "of long sweeps a share is tried; VERBATIM_TURN=$VERBATIM_TURN PROGRAM tries the same share again"
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" "$0" --one "$logs"
awk -v wanted=$# '
    { tests += $2; skipped += $3; cpu += $5; if ($1 != 0) { failed++; names = names " " $4 } }
    END {
        printf "summary: %d programs, %d tests passed, %d skipped, %.0f s of CPU, ", NR, tests, skipped, cpu
        if (NR != wanted) { printf "%d programs NEVER ENDED\n", wanted - NR; exit 1 }
        if (failed) { printf "%d programs FAILED:%s\n", failed, names; exit 1 }
        print "none failed"
    }' "$logs/results"
