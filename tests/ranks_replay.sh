#!/bin/sh
# tests/ranks_replay.sh HERE RUNNER... THERE -- three ranks run with the programs in the build folder HERE, and all their exchanges are recorded.
# Then each rank runs alone with the programs in THERE, which RUNNER emulates. Each rank must send the recorded bytes.
set -eu
here=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$here/tests/test_ranks_replay" record "$dir"
for rank in 0 1 2; do
    "$@/tests/test_ranks_replay" replay "$dir" $rank
done
