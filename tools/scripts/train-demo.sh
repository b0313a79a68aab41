#!/bin/sh
# A small model is trained twice from the same random weights, with and without the loss of an MTP module, and the losses of the next
# token on held-out text are drawn. SHAPE=NAME: the shape examples/train/NAME, and the options in its file `options`, if it has one.
# OUT=DIR: a new folder for everything. Other options go to both runs.
set -eu
build=${BUILD:-build} shape=${SHAPE:-two-layers} here=examples/train
if [ -n "${OUT:-}" ]; then
    out=$OUT
    mkdir "$out"
else
    out=$build/train-demo/$shape
    rm -rf "$out"
fi
mkdir -p "$out/shape"
cp "$here/$shape/config.json" golden/tale/tokenizer.json golden/tale/tokenizer_config.json "$out/shape/"
own=
[ ! -f "$here/$shape/options" ] || own=$(cat "$here/$shape/options")
cat <<END
Two models with the shape of $here/$shape/config.json read Shakespeare, a text of 442,115 tokens. Both begin with the same weights. The
first has an MTP module, whose loss is added to that of the next token.
END
for depths in 1 0; do
    run=$out/mtp-$depths
    printf '\n--mtp-num-layers %s\n' $depths
    # shellcheck disable=SC2086 # several words
    "$build/verbatim" train "$out/shape" --from-scratch --mtp-num-layers $depths --data $here/shakespeare.train.txt \
        --eval-data $here/shakespeare.heldout.txt --eval-iters 100 --eval-interval 40 --log-interval 40 --eval-prompts 0 \
        --seq-length 256 --train-iters 400 --lr 3e-3 --lr-warmup-iters 20 --lr-decay-style cosine $own -o "$run" "$@"
done
echo
tools/scripts/draw-curves.py -o "$out/curves.svg" "with MTP=$out/mtp-1/curves.csv" "without=$out/mtp-0/curves.csv"
echo "$out/curves.svg has the curves"
