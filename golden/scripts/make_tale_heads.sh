#!/bin/sh
# Makes golden/heads/parallel-tale again: two parallel heads for golden/tale, by `verbatim train` on text that the model itself writes. The result
# has the same bits on every machine; it takes some minutes of processor time.
#
#     golden/scripts/make_tale_heads.sh WORK      WORK: a folder for the text and the run, which must not exist
set -eu
cd "$(dirname "$0")/../.."
work=$1
mkdir "$work"
python3 golden/scripts/make_tale_text.py build/verbatim "$work/own" --sequences 1500
build/verbatim train golden/tale --part parallel-heads --mtp-num-layers 2 --heads-mlp dense --data "$work/own/text.jsonl" --eval-share 0.02 --soft-targets 0.5 \
    --batch-tokens 1024 --train-iters 600 --lr 3e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 30 --log-interval 20 \
    --eval-interval 200 --eval-iters 2 --eval-prompts 20 -o "$work/run"
mkdir -p golden/heads/parallel-tale
cp "$work/run/head/config.json" "$work/run/head/model.safetensors" golden/heads/parallel-tale/
