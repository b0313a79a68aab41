#!/bin/sh
# Makes golden/eagle/eagle1-tale and golden/eagle/eagle3-tale again: an EAGLE and an EAGLE-3 head for golden/tale, by `verbatim train` on text that the
# model itself writes. The weights have the same bits on every machine; it takes about twenty minutes of processor time.
#
#     golden/scripts/make_tale_eagle.sh WORK      WORK: a folder for the text and the runs, which must not exist
set -eu
cd "$(dirname "$0")/../.."
work=$1
mkdir "$work"
python3 golden/scripts/make_tale_text.py build/verbatim "$work/own" --sequences 2000

train() { # RUN OPTIONS
    run=$1
    shift
    build/verbatim train golden/tale --data "$work/own/text.jsonl" --eval-share 0.02 --batch-tokens 2048 --lr-warmup-iters 10 --lr-decay-style cosine \
        --eval-interval 100 --eval-prompts 20 -o "$work/$run" "$@"
}
keep() { # RUN HEAD: the folder of MODEL in config.json is not that of this machine
    mkdir -p "golden/eagle/$2"
    sed 's|"name_or_path": ".*"|"name_or_path": "golden/tale"|' "$work/$1/head/config.json" >"golden/eagle/$2/config.json"
    cp "$work/$1/head/model.safetensors" "golden/eagle/$2/"
}

train eagle --part eagle --train-iters 450 --lr 2e-3
train eagle3 --part eagle3 --train-iters 350 --lr 2e-3
keep eagle eagle1-tale
keep eagle3 eagle3-tale
