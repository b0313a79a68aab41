#!/bin/sh
# A small model is trained twice from the same random weights, with and without the loss of an MTP module, and the losses of the next
# token on held-out text are drawn. SHAPE=NAME: the shape examples/train/NAME. OUT=DIR: a new folder for everything. Other options go to
# both runs.
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
cat <<END
Two models with the shape of $here/$shape/config.json read Shakespeare: 442,115 tokens, almost four times. Both begin with the same
weights. The first has an MTP module, whose loss is added to that of the next token.
END
for depths in 1 0; do
    run=$out/mtp-$depths
    printf '\n--mtp-num-layers %s\n' $depths
    "$build/verbatim" train "$out/shape" --from-scratch --mtp-num-layers $depths --data $here/shakespeare.train.txt \
        --eval-data $here/shakespeare.heldout.txt --eval-iters 100 --eval-interval 40 --log-interval 40 --eval-prompts 0 \
        --seq-length 256 --train-iters 400 --lr 3e-3 --lr-warmup-iters 20 --lr-decay-style cosine -o "$run" "$@"
done
echo
tools/scripts/draw-curves.py -o "$out/curves.svg" "with MTP=$out/mtp-1/curves.csv" "without=$out/mtp-0/curves.csv"
echo "$out/curves.svg has the curves"
