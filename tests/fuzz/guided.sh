#!/bin/sh
# Fuzzing guided by coverage, with libFuzzer.
#   guided.sh BUILD SECONDS TARGET[:SEED...]...   each target for so many seconds, on its seeds and on what earlier runs found
#   guided.sh --keep BUILD TARGET...              the smallest inputs that reach all that BUILD/corpus reaches, up to 4 KB each and
#                                                 40 of each target, into tests/fuzz/corpus
# Runs in the repository's root. An input that breaks a target lies in BUILD/found then.
set -eu

limits="-timeout=120 -rss_limit_mb=2048 -max_len=262144"

keep() { # BUILD TARGET
    smaller=$(mktemp -d)
    mkdir -p "tests/fuzz/corpus/$2"
    "$1/tests/$2" -merge=1 $limits -max_len=4096 "$smaller" "tests/fuzz/corpus/$2" "$1/corpus/$2" >"$1/$2.merge.log" 2>&1
    rm -f "tests/fuzz/corpus/$2"/*
    ls -S "$smaller" | tail -n 40 | while read -r name; do
        cp "$smaller/$name" "tests/fuzz/corpus/$2/$(echo "$name" | cut -c 1-12)"
    done
    rm -r "$smaller"
    echo "$2: $(ls "tests/fuzz/corpus/$2" | wc -l) inputs"
}

if [ "$1" = --keep ]; then
    build=$2
    shift 2
    for target; do
        keep "$build" "$target"
    done
    exit 0
fi

build=$1 seconds=$2 failed=
shift 2
mkdir -p "$build/found"
for one; do
    target=${one%%:*} corpus="$build/corpus/${one%%:*}"
    mkdir -p "$corpus" "tests/fuzz/corpus/$target"
    for seed in $(echo "${one#"$target"}" | tr : ' '); do
        cp "$seed" "$corpus/$(echo "$seed" | tr / _)"
    done
    if "$build/tests/$target" $limits -max_total_time="$seconds" -artifact_prefix="$build/found/$target-" -print_final_stats=1 \
        "$corpus" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1; then
        echo "$target: $(grep -c . "$build/$target.log") lines, $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs, $(ls "$corpus" | wc -l) kept"
    else
        failed="$failed $target"
        tail -n 60 "$build/$target.log"
    fi
done
[ -z "$failed" ] || { echo "found something:$failed" >&2; exit 1; }
