#!/bin/sh
# train-demo.sh BUILD -- `make train-demo` with one step for each run: both runs begin with the same weights, and the picture has both.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
BUILD=$1 OUT=$dir/out tools/scripts/train-demo.sh --train-iters 1 --lr-warmup-iters 0 --seq-length 32 --batch-tokens 64 --eval-iters 1 > "$dir/said"
fail() { echo "$1"; cat "$dir/said"; exit 1; }
grep -q '^with MTP: held_out_main [0-9.]* after 64 tokens$' "$dir/said" || fail "the end of the first run is not told"
grep -q '^without: held_out_main [0-9.]* after 64 tokens$' "$dir/said" || fail "the end of the second run is not told"
[ "$(grep -c '<polyline' "$dir/out/curves.svg")" = 2 ] || fail "the picture has not two curves"
# The loss of the next token before the first step, to the last digit.
first() { awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "held_out_main") c = i } NR == 2 { print $c }' "$dir/out/mtp-$1/curves.csv"; }
[ -n "$(first 0)" ] && [ "$(first 0)" = "$(first 1)" ] || fail "the runs begin with $(first 1) and $(first 0)"
if tools/scripts/draw-curves.py -o "$dir/x.svg" a="$dir/said" 2> "$dir/why"; then fail "a file that is no table is drawn"; fi
grep -q 'said: it has no columns tokens and held_out_main$' "$dir/why" || fail "$(cat "$dir/why")"
echo "[  PASSED  ] 4 test(s)."
